// A tile of positions.cu: positions by channels. A thread's part of it, from the loads to the
// results.

#ifndef NORMD_KERNELS_CUDA_STAGES_POSITIONS_TILE_CUH_
#define NORMD_KERNELS_CUDA_STAGES_POSITIONS_TILE_CUH_

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/stages/position_factors.cuh"
#include "kernels/cuda/stages/position_slabs_plan.h"

namespace normd::norm::cuda {

inline constexpr int kColumnThreads = 256;
inline constexpr int kColumnChannels = 16;  // Per thread.
inline constexpr int kMaxColumnChannels = kMostTileChannels;
inline constexpr int kMaxColumnSplits = kMaxColumnChannels / kColumnChannels;
inline constexpr int kColumnWarps = kColumnThreads / kLanes;
inline constexpr int kMaxLanesOfPosition = kMaxColumnSplits / kColumnWarps;

// Whether a tile's vectors may be those of several groups: if whole vectors fill each group's
// positions and no channel's factor differs between groups. Otherwise each group has its own tiles.
template <int kWordBytes>
__host__ __device__ inline bool SpansGroups(const StageBatch& batch) {
  return kWordBytes == kVectorBytes && !batch.scale && !batch.shift && batch.groups.value() == 1;
}

// A thread's positions of a channel fill a vector, in words that its address allows: the whole
// vector, or fewer bytes. The words of neighbouring threads are adjacent, so a warp's accesses are
// consecutive whatever the word. A word of a channel exists as a whole or not at all.
template <typename T, int kWordBytes>
struct PositionWords {
  static constexpr int kWords = kVectorBytes / kWordBytes;
  static constexpr int kPositions = kWordBytes / static_cast<int>(sizeof(T));  // In a word.

  // A position of a segment.
  struct Place {
    std::uint32_t group;    // In all samples.
    std::int64_t position;  // Within the group.
  };
  // Position j of a vector of the segment's tile with this number.
  __device__ static Place Find(const StageBatch& batch, const StageSegment& segment,
                               std::uint32_t tile, int j, int vector, int vectors) {
    constexpr int kCount = kPerVector<T>;
    const bool spans = SpansGroups<kWordBytes>(batch);
    const std::uint32_t number = spans ? tile * vectors + vector : tile;
    const std::uint32_t group = segment.positions.Divide(number);
    const std::int64_t of_group = number - group * segment.positions.value();
    const int of_tile = (j / kPositions * vectors + vector) * kPositions + j % kPositions;
    return {group, spans ? of_group * kCount + j : of_group * (vectors * kCount) + of_tile};
  }

  // Words are `step` bytes apart. The first takes the place of those that do not exist: without
  // branches a thread's loads are issued back to back.
  __device__ static Vector Load(const char* address, int step, int words) {
    if constexpr (kWords == 1) {
      return LoadVector(address);
    } else {
      std::uint32_t loaded[4] = {0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const char* const from = address + (i < words ? i * step : 0);
        if constexpr (kWordBytes == 8) {
          const uint2 word = LoadKept(reinterpret_cast<const uint2*>(from));
          loaded[2 * i] = word.x;
          loaded[2 * i + 1] = word.y;
        } else if constexpr (kWordBytes == 4) {
          loaded[i] = LoadKept(reinterpret_cast<const std::uint32_t*>(from));
        } else {
          loaded[i / 2] |= std::uint32_t{*reinterpret_cast<const std::uint16_t*>(from)}
                           << (i % 2 * 16);
        }
      }
      return make_uint4(loaded[0], loaded[1], loaded[2], loaded[3]);
    }
  }

  __device__ static void Store(char* address, int step, int words, const Vector& vector) {
    if constexpr (kWords == 1) {
      StoreVector(address, vector);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        if (i >= words) continue;
        char* const to = address + i * step;
        if constexpr (kWordBytes == 8) {
          *reinterpret_cast<uint2*>(to) =
              make_uint2(WordOf(vector, 2 * i), WordOf(vector, 2 * i + 1));
        } else if constexpr (kWordBytes == 4) {
          *reinterpret_cast<std::uint32_t*>(to) = WordOf(vector, i);
        } else {
          *reinterpret_cast<std::uint16_t*>(to) =
              static_cast<std::uint16_t>(WordOf(vector, i / 2) >> (i % 2 * 16));
        }
      }
    }
  }
};

// A thread's place.
struct ColumnPlace {
  const StageSegment* segment;
  std::int64_t sample;
  std::int64_t first_channel;
  std::int64_t row;       // The group's first position, counted in the segment's rows.
  std::int64_t position;  // The thread's first, in the group.
  std::uint32_t tile;     // In the segment.
  int words;              // The number of the thread's words that exist.
  int split;
  int vector;   // A vector of positions, in the tile.
  int vectors;  // In a tile.
  int splits;
};

template <typename T, int kWordBytes>
__device__ inline ColumnPlace FindColumns(const StageBatch& batch, int splits,
                                          std::uint32_t index) {
  using Words = PositionWords<T, kWordBytes>;
  ColumnPlace place;
  int found = 0;
  while (index >= batch.segments[found].end_row) ++found;
  place.segment = &batch.segments[found];
  place.tile = index - (found == 0 ? 0 : batch.segments[found - 1].end_row);
  place.splits = splits;
  place.vectors = kColumnThreads / splits;
  place.split = static_cast<int>(threadIdx.x) / place.vectors;
  place.vector = static_cast<int>(threadIdx.x) % place.vectors;
  const auto own = Words::Find(batch, *place.segment, place.tile, 0, place.vector, place.vectors);
  const std::uint32_t sample = batch.groups.Divide(own.group);
  const std::int64_t spatial = place.segment->spatial;
  place.sample = sample;
  place.first_channel = (own.group - sample * batch.groups.value()) * batch.channels_per_group;
  place.row = own.group * spatial;
  place.position = own.position;
  place.words = 0;
  if (own.group < place.segment->groups) {
#pragma unroll
    for (int i = 0; i < Words::kWords; ++i) {
      if (own.position + i * place.vectors * Words::kPositions < spatial) ++place.words;
    }
  }
  return place;
}

template <typename T, int kWordBytes>
class Columns {
 public:
  using Words = PositionWords<T, kWordBytes>;
  static constexpr int kCount = kPerVector<T>;

  __device__ Columns(const StageBatch& batch, const ColumnPlace& place)
      : batch_(batch),
        place_(place),
        held_(place.words == 0
                  ? 0
                  : (static_cast<int>(batch.channels_per_group) - place.split + place.splits - 1) /
                        place.splits),
        step_(Opaque(place.splits * place.segment->spatial * static_cast<int>(sizeof(T)))),
        begin_((place.row * batch.channels_per_group + place.split * place.segment->spatial +
                place.position) *
               static_cast<int>(sizeof(T))) {}

  __device__ void Load() {
    const char* from = place_.segment->x + begin_;
#pragma unroll
    for (int i = 0; i < kColumnChannels; ++i, from += step_) {
      x_[i] = make_uint4(0, 0, 0, 0);
      if (Exists(i)) x_[i] = LoadWords(from);
    }
  }

  // Loads the thread's part of the tile into the thread's own part of shared memory, whose first
  // vector is `staging`.
  __device__ void Request(std::uint32_t staging) const {
    const std::uint64_t policy = KeepPolicy();
    const char* from = place_.segment->x + begin_;
#pragma unroll
    for (int i = 0; i < kColumnChannels; ++i, from += step_) {
      if (Exists(i)) CopyToShared(staging + i * kColumnThreads * kVectorBytes, from, policy);
    }
  }
  // Takes the vectors that Request has loaded and the caller has awaited.
  __device__ void Take(const Vector* staging) {
#pragma unroll
    for (int i = 0; i < kColumnChannels; ++i) {
      x_[i] = make_uint4(0, 0, 0, 0);
      if (Exists(i)) x_[i] = staging[i * kColumnThreads];
    }
  }

  __device__ void AddResidual() {
    const StageSegment& segment = *place_.segment;
    if (!batch_.residual) return;
#pragma unroll
    for (int i = 0; i < kColumnChannels; ++i) {
      if (!Exists(i)) continue;
      float values[kCount], others[kCount];
      Unpack<T>(x_[i], values);
      Unpack<T>(LoadWords(segment.residual + Offset(i)), others);
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] += others[j];
      x_[i] = Pack<T>(values);
      if (batch_.residual_out) StoreWords(segment.residual_out + Offset(i), x_[i]);
    }
  }

  // The statistics of the channels that the warp's lanes hold together, at each of the thread's
  // positions, in the lowest of these lanes.
  __device__ void Sum(Moments<float> (&moments)[kCount]) const {
    float reference[kCount] = {}, sum[kCount] = {}, squares[kCount] = {};
    int count = held_;
    if (batch_.statistics != Statistics::kMeanVariance) {
      ForValues([&](int j, float value) { squares[j] = Fma(value, value, squares[j]); });
      AddLanes(squares);
      count = CountOfLanes(count);
    } else {
      Reference(count, reference);
      ForValues([&](int j, float value) {
        const float deviation = value - reference[j];
        sum[j] += deviation;
        squares[j] = Fma(deviation, deviation, squares[j]);
      });
      if constexpr (!kMeanReference<T>) {
        AddLanes(sum);
        AddLanes(squares);
        count = CountOfLanes(count);
      }
    }
    const bool centered = batch_.statistics == Statistics::kMeanVariance;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      moments[j] = MomentsOfSums(reference[j], sum[j], squares[j], count, centered);
    }
    if (kMeanReference<T> && centered) MergeLanesOfPosition(moments);
  }

  __device__ void RepackAll() {
#pragma unroll
    for (int i = 0; i < kColumnChannels; ++i) Repack(x_[i]);
  }

  __device__ void Write(const PositionSlot* scales,
                        const ChannelFactors<float> (&channels)[kMaxColumnChannels]) const {
    float mean[kCount], rstd[kCount], shift[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const PositionSlot slot = scales[j * place_.vectors + place_.vector];
      mean[j] = slot.reference;
      rstd[j] = slot.mean;
      shift[j] = slot.m2;
    }
    const StageSegment& segment = *place_.segment;
    const bool centered = batch_.statistics == Statistics::kMeanVariance;
    char* y = segment.y + begin_;
#pragma unroll
    for (int i = 0; i < kColumnChannels; ++i, y += step_) {
      if (!Exists(i)) continue;
      float values[kCount];
      Unpack<T>(x_[i], values);
      if (centered) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) values[j] = Fma(values[j] - mean[j], rstd[j], shift[j]);
      } else {
#pragma unroll
        for (int j = 0; j < kCount; ++j) values[j] *= rstd[j];
      }
      if (batch_.affine) {
        const ChannelFactors<float> own = channels[i * place_.splits + place_.split];
#pragma unroll
        for (float& value : values) value = Fma(value, own.factor, own.offset);
      }
      if (batch_.combine_output != Combine::kNone) {
        float others[kCount];
        Unpack<T>(LoadWords(segment.other + Offset(i)), others);
        if (batch_.combine_output == Combine::kAdd) {
          CombineAll<Combine::kAdd>(values, others);
        } else {
          CombineAll<Combine::kMultiply>(values, others);
        }
      }
      StoreWords(y, Pack<T>(values));
    }
  }

 private:
  // Otherwise the compiler computes each channel's offset anew.
  __device__ static std::int64_t Opaque(std::int64_t value) {
    asm volatile("" : "+l"(value));
    return value;
  }
  __device__ bool Exists(int i) const { return i < held_; }
  __device__ std::int64_t Offset(int i) const { return begin_ + i * step_; }
  __device__ Vector LoadWords(const char* address) const {
    return Words::Load(address, place_.vectors * kWordBytes, place_.words);
  }
  __device__ void StoreWords(char* address, const Vector& vector) const {
    Words::Store(address, place_.vectors * kWordBytes, place_.words, vector);
  }

  template <typename Visit>
  __device__ void ForValues(Visit visit) const {
#pragma unroll
    for (int i = 0; i < kColumnChannels; ++i) {
      if (!Exists(i)) continue;
      float values[kCount];
      Unpack<T>(x_[i], values);
#pragma unroll
      for (int j = 0; j < kCount; ++j) visit(j, values[j]);
    }
  }

  // The mean of the thread's elements; for 16 bits the mean of the first channels that the warp
  // holds of the position, so that its sums only have to be added.
  __device__ void Reference(int count, float (&reference)[kCount]) const {
    if constexpr (kMeanReference<T>) {
      ForValues([&](int j, float value) { reference[j] += value; });
#pragma unroll
      for (float& value : reference) {
        value = count > 0 ? Quotient(value, static_cast<float>(count)) : 0;
      }
    } else {
      Vector own = x_[0];
      if (held_ > 1) own = Average<T>(own, x_[1]);
      if (held_ > 3) own = Average<T>(own, Average<T>(x_[2], x_[3]));
      const int first = static_cast<int>(threadIdx.x) & (min(place_.vectors, kLanes) - 1);
      Unpack<T>(
          make_uint4(__shfl_sync(kAllLanes, own.x, first), __shfl_sync(kAllLanes, own.y, first),
                     __shfl_sync(kAllLanes, own.z, first), __shfl_sync(kAllLanes, own.w, first)),
          reference);
    }
  }

  // Adds up the values of lanes that share a position.
  __device__ void AddLanes(float (&values)[kCount]) const {
#pragma unroll
    for (int offset = kLanes / 2; offset >= kLanes / kMaxLanesOfPosition; offset /= 2) {
      if (offset < place_.vectors) continue;
#pragma unroll
      for (float& value : values) value += __shfl_xor_sync(kAllLanes, value, offset);
    }
  }
  __device__ int CountOfLanes(int count) const {
    for (int offset = kLanes / 2; offset >= place_.vectors; offset /= 2) {
      count += __shfl_xor_sync(kAllLanes, count, offset);
    }
    return count;
  }

  __device__ void MergeLanesOfPosition(Moments<float> (&moments)[kCount]) const {
    for (int offset = kLanes / 2; offset >= place_.vectors; offset /= 2) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        const Moments<float> other = {__shfl_xor_sync(kAllLanes, moments[j].reference, offset),
                                      __shfl_xor_sync(kAllLanes, moments[j].mean, offset),
                                      __shfl_xor_sync(kAllLanes, moments[j].m2, offset),
                                      __shfl_xor_sync(kAllLanes, moments[j].count, offset)};
        moments[j] = Merge(moments[j], other);
      }
    }
  }

  const StageBatch& batch_;
  const ColumnPlace& place_;
  const int held_;           // The thread's channels.
  const std::int64_t step_;  // Bytes between the thread's channels.
  const std::int64_t begin_;
  Vector x_[kColumnChannels];
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_POSITIONS_TILE_CUH_
