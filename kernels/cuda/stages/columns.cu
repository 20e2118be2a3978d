// Rows of positions, channels first: tiles of positions by all channels of a group, in registers.
//
// Phases: a thread takes up to 16 channels at the 16 bytes of positions that are its own, so that
// neighbours read neighbouring bytes; it sums them for each position, threads that share a
// position merge by shuffles and through shared memory, and every thread scales what it holds.
// Meanwhile the block works out each channel's factor and offset, once for all its positions.
// Bytes: each element is read once and written once.
// Occupancy: two blocks of 256 threads with 16 vectors each, 128 KiB on a multiprocessor.
// Determinism: which thread sums a channel, and the order of merges, follow from the number of
// channels alone. Positions at other addresses, and fewer than a vector holds, are read one by one.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/stages/stage_launch.cuh"
#include "kernels/cuda/stages/stage_sums.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChannels = 16;  // Of a thread.
constexpr int kMaxSplits = 64;
constexpr int kMaxChannels = kChannels * kMaxSplits;

// How many threads share a position: the fewest that hold its channels, a power of two.
int SplitsOf(std::int64_t channels) {
  int splits = 1;
  while (std::int64_t{splits} * kChannels < channels) splits *= 2;
  return splits;
}

// A position's statistics, and then what it is normalized by.
struct PositionSlot {
  float reference;  // Then the mean,
  float mean;       // rstd,
  float m2;         // and what is added for the mean's residue.
  float count;

  __device__ static PositionSlot Of(const Moments<float>& moments) {
    return {moments.reference, moments.mean, moments.m2, moments.count};
  }
  __device__ Moments<float> moments() const { return {reference, mean, m2, count}; }
};

template <typename T, bool kAligned>
__device__ inline Vector LoadPositions(const char* address, int present) {
  constexpr int kCount = kPerVector<T>;
  if constexpr (kAligned) {
    return LoadVector(address);
  } else {
    float values[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = i < present ? Widen(reinterpret_cast<const T*>(address)[i]) : 0;
    }
    return Pack<T>(values);
  }
}

template <typename T, bool kAligned>
__device__ inline void StorePositions(char* address, const Vector& vector, int present) {
  if constexpr (kAligned) {
    StoreVector(address, vector);
  } else {
    StoreSpan<T>(address, vector, 0, present * static_cast<int>(sizeof(T)));
  }
}

// Where a thread is.
struct ColumnPlace {
  const StageSegment* segment;
  std::int64_t sample;
  std::int64_t first_channel;
  std::int64_t row;       // Number of the group's first position among the segment's rows.
  std::int64_t position;  // The first of its own.
  int present;            // Of its positions.
  int split;
  int vector;   // Of positions, in the tile.
  int vectors;  // In a tile.
  int splits;
};

template <typename T>
__device__ inline ColumnPlace FindColumns(const StageBatch& batch, int splits) {
  constexpr int kCount = kPerVector<T>;
  ColumnPlace place;
  int found = 0;
  while (blockIdx.x >= batch.segments[found].end_row) ++found;
  place.segment = &batch.segments[found];
  const std::uint32_t local = blockIdx.x - (found == 0 ? 0 : batch.segments[found - 1].end_row);
  const Divisor tiles = place.segment->positions;
  const std::uint32_t outer = tiles.Divide(local);
  const std::uint32_t sample = batch.groups.Divide(outer);
  const std::int64_t spatial = place.segment->spatial;
  place.sample = sample;
  place.first_channel = (outer - sample * batch.groups.value()) * batch.channels_per_group;
  place.row = outer * spatial;
  place.splits = splits;
  place.vectors = kThreads / splits;
  place.split = static_cast<int>(threadIdx.x) / place.vectors;
  place.vector = static_cast<int>(threadIdx.x) % place.vectors;
  const std::int64_t tile = local - outer * tiles.value();
  place.position = (tile * place.vectors + place.vector) * kCount;
  const std::int64_t left = spatial - place.position;
  place.present = static_cast<int>(left < 0 ? 0 : left < kCount ? left : kCount);
  return place;
}

// Factor and offset of each channel of the group.
__device__ inline void FillChannels(const StageBatch& batch, const ColumnPlace& place,
                                    ChannelFactors<float> (&channels)[kMaxChannels]) {
  for (auto c = static_cast<int>(threadIdx.x); c < batch.channels_per_group; c += kThreads) {
    const std::int64_t channel = place.first_channel + c;
    const std::int64_t of_sample = place.sample * batch.channels + channel;
    ChannelFactors<float> own = {1, 0};
    if (batch.gamma.data != nullptr) {
      own.factor = LoadParam(batch.gamma, channel, 0.0f) + batch.weight_offset.narrow;
    }
    own.offset = LoadParam(batch.beta, channel, 0.0f);
    if (batch.scale) {
      const ParamVector scale = {place.segment->scale, batch.dtype};
      const float by = batch.scale_offset.narrow + LoadParam(scale, of_sample, 0.0f);
      own.factor *= by;
      own.offset *= by;
    }
    if (batch.shift) {
      const ParamVector shift = {place.segment->shift, batch.dtype};
      own.offset += LoadParam(shift, of_sample, 0.0f);
    }
    channels[c] = own;
  }
}

template <typename T, bool kAligned>
class Columns {
 public:
  static constexpr int kCount = kPerVector<T>;

  __device__ Columns(const StageBatch& batch, const ColumnPlace& place)
      : batch_(batch),
        place_(place),
        channels_(static_cast<int>(batch.channels_per_group)),
        step_(place.splits * place.segment->spatial * static_cast<int>(sizeof(T))),
        begin_((place.row * batch.channels_per_group + place.split * place.segment->spatial +
                place.position) *
               static_cast<int>(sizeof(T))) {}

  __device__ void Load() {
    const StageSegment& segment = *place_.segment;
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      x_[i] = make_uint4(0, 0, 0, 0);
      if (Exists(i)) x_[i] = LoadPositions<T, kAligned>(segment.x + Offset(i), place_.present);
    }
    if (!batch_.residual) return;
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      if (!Exists(i)) continue;
      float values[kCount], others[kCount];
      Unpack<T>(x_[i], values);
      Unpack<T>(LoadPositions<T, kAligned>(segment.residual + Offset(i), place_.present), others);
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] += others[j];
      x_[i] = Pack<T>(values);
      if (batch_.residual_out) {
        StorePositions<T, kAligned>(segment.residual_out + Offset(i), x_[i], place_.present);
      }
    }
  }

  // The statistics of the thread's channels at each of its positions.
  __device__ void Sum(Moments<float> (&moments)[kCount]) const {
    float reference[kCount] = {}, sum[kCount] = {}, squares[kCount] = {};
    const int count = place_.split < channels_
                          ? (channels_ - place_.split + place_.splits - 1) / place_.splits
                          : 0;
    const bool centered = batch_.statistics == Statistics::kMeanVariance;
    if (centered) Reference(count, reference);
    ForValues([&](int j, float value) {
      const float deviation = value - reference[j];
      sum[j] += deviation;
      squares[j] = Fma(deviation, deviation, squares[j]);
    });
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      moments[j] = MomentsOfSums(reference[j], sum[j], squares[j], count, centered);
    }
  }

  __device__ void RepackAll() {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) Repack(x_[i]);
  }

  __device__ void Write(const PositionSlot* slots,
                        const ChannelFactors<float> (&channels)[kMaxChannels]) const {
    float mean[kCount], rstd[kCount], shift[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const PositionSlot slot = slots[j * place_.vectors + place_.vector];
      mean[j] = slot.reference;
      rstd[j] = slot.mean;
      shift[j] = slot.m2;
    }
    const StageSegment& segment = *place_.segment;
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      if (!Exists(i)) continue;
      float values[kCount];
      Unpack<T>(x_[i], values);
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] = Fma(values[j] - mean[j], rstd[j], shift[j]);
      if (batch_.affine) {
        const ChannelFactors<float> own = channels[i * place_.splits + place_.split];
#pragma unroll
        for (float& value : values) value = Fma(value, own.factor, own.offset);
      }
      if (batch_.combine_output != Combine::kNone) {
        float others[kCount];
        Unpack<T>(LoadPositions<T, kAligned>(segment.other + Offset(i), place_.present), others);
        if (batch_.combine_output == Combine::kAdd) {
          CombineAll<Combine::kAdd>(values, others);
        } else {
          CombineAll<Combine::kMultiply>(values, others);
        }
      }
      StorePositions<T, kAligned>(segment.y + Offset(i), Pack<T>(values), place_.present);
    }
  }

 private:
  __device__ bool Exists(int i) const {
    return place_.present > 0 && i * place_.splits + place_.split < channels_;
  }
  __device__ std::int64_t Offset(int i) const { return begin_ + i * step_; }

  template <typename Visit>
  __device__ void ForValues(Visit visit) const {
#pragma unroll
    for (int i = 0; i < kChannels; ++i) {
      if (!Exists(i)) continue;
      float values[kCount];
      Unpack<T>(x_[i], values);
#pragma unroll
      for (int j = 0; j < kCount; ++j) visit(j, values[j]);
    }
  }

  // As LaneSums takes it: the mean of what the thread holds, or the first element for 16 bits.
  __device__ void Reference(int count, float (&reference)[kCount]) const {
    if constexpr (kMeanReference<T>) {
      ForValues([&](int j, float value) { reference[j] += value; });
#pragma unroll
      for (float& value : reference) {
        value = count > 0 ? Quotient(value, static_cast<float>(count)) : 0;
      }
    } else {
      Unpack<T>(x_[0], reference);
    }
  }

  const StageBatch& batch_;
  const ColumnPlace& place_;
  const int channels_;
  const std::int64_t step_;  // Bytes between the thread's channels.
  const std::int64_t begin_;
  Vector x_[kChannels];
};

// Merges what the threads of a position hold, and leaves in `slots` what it is normalized by.
template <typename T>
__device__ inline void MergePositions(const StageBatch& batch, const ColumnPlace& place,
                                      Moments<float> (&moments)[kPerVector<T>],
                                      PositionSlot* slots) {
  constexpr int kCount = kPerVector<T>;
  const Statistics statistics = batch.statistics;
  for (int offset = kLanes / 2; offset >= place.vectors; offset /= 2) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const Moments<float> other = {__shfl_xor_sync(kAllLanes, moments[j].reference, offset),
                                    __shfl_xor_sync(kAllLanes, moments[j].mean, offset),
                                    __shfl_xor_sync(kAllLanes, moments[j].m2, offset),
                                    __shfl_xor_sync(kAllLanes, moments[j].count, offset)};
      moments[j] = MergeStatistics(statistics, moments[j], other);
    }
  }
  const int positions = place.vectors * kCount;  // Of a tile.
  const int parts = min(place.splits, kThreads / kLanes);
  const int splits_of_part = place.splits / parts;
  if (place.split % splits_of_part == 0) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      slots[place.split / splits_of_part * positions + j * place.vectors + place.vector] =
          PositionSlot::Of(moments[j]);
    }
  }
  __syncthreads();
  const std::int64_t tile_position = place.position - place.vector * kCount;
  for (int at = static_cast<int>(threadIdx.x); at < positions; at += kThreads) {
    Moments<float> all = slots[at].moments();
    for (int part = 1; part < parts; ++part) {
      all = MergeStatistics(statistics, all, slots[part * positions + at].moments());
    }
    const RowScale<float> scale = FinishStatistics(statistics, all, batch.eps);
    const bool centered = statistics == Statistics::kMeanVariance;
    slots[at] = {scale.mean, scale.rstd, centered ? -scale.residue * scale.rstd : 0, 0};
    const std::int64_t position = tile_position + at % place.vectors * kCount + at / place.vectors;
    if (position >= place.segment->spatial) continue;
    const std::int64_t row = place.row + position;
    auto* const mean_out = static_cast<float*>(place.segment->mean_out);
    auto* const rstd_out = static_cast<float*>(place.segment->rstd_out);
    if (mean_out != nullptr) mean_out[row] = scale.mean;
    if (rstd_out != nullptr) rstd_out[row] = scale.rstd;
  }
  __syncthreads();
}

template <typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads, 2)
    ColumnTiles(const __grid_constant__ StageBatch batch, const int splits) {
  constexpr int kCount = kPerVector<T>;
  __shared__ PositionSlot slots[kThreads * kCount];
  __shared__ ChannelFactors<float> channels[kMaxChannels];
  const ColumnPlace place = FindColumns<T>(batch, splits);
  Columns<T, kAligned> held(batch, place);
  AwaitPreviousKernel();
  held.Load();
  if (batch.affine) FillChannels(batch, place, channels);
  Moments<float> moments[kCount];
  held.Sum(moments);
  MergePositions<T>(batch, place, moments, slots);
  held.RepackAll();
  held.Write(slots, channels);
}

bool PositionsAreAligned(const StageBatch& batch) {
  const auto element = static_cast<std::int64_t>(SizeOf(batch.dtype));
  std::uintptr_t bits = 0;
  for (int i = 0; i < batch.segment_count; ++i) {
    const StageSegment& segment = batch.segments[i];
    for (const char* tensor : {segment.x, static_cast<const char*>(segment.y), segment.residual,
                               static_cast<const char*>(segment.residual_out), segment.other}) {
      bits |= reinterpret_cast<std::uintptr_t>(tensor);
    }
    bits |= static_cast<std::uintptr_t>(segment.spatial * element);
  }
  return bits % kVectorBytes == 0;
}

}  // namespace

bool TakesColumns(const Launch& launch, const StageBatch& batch) {
  const NormSpec& spec = launch.spec;
  return batch.places == RowPlaces::kColumns && batch.channels_per_group <= kMaxChannels &&
         spec.dtype != DType::kFloat64 && spec.style == Style::kNone &&
         spec.statistics != Statistics::kSumOfAbsolutes &&
         spec.statistics != Statistics::kLargestAbsolute &&
         spec.quantization == Quantization::kNone && spec.activation == Activation::kNone &&
         spec.combine_input == Combine::kNone && spec.combine_output <= Combine::kMultiply &&
         !spec.gate && batch.input_bias.data == nullptr;
}

cudaError_t LaunchColumns(const Launch& launch, StageBatch batch) {
  const int splits = SplitsOf(batch.channels_per_group);
  const auto per_vector = kVectorBytes / static_cast<std::int64_t>(SizeOf(launch.spec.dtype));
  const std::int64_t tile = kThreads / splits * per_vector;
  // Tiles take the place of rows.
  std::uint32_t rows = 0;
  std::uint32_t blocks = 0;
  for (int i = 0; i < batch.segment_count; ++i) {
    StageSegment& segment = batch.segments[i];
    const std::uint32_t outer =
        (segment.end_row - rows) / static_cast<std::uint32_t>(segment.spatial);
    const auto tiles = static_cast<std::uint32_t>((segment.spatial + tile - 1) / tile);
    rows = segment.end_row;
    blocks += outer * tiles;
    segment.end_row = blocks;
    segment.positions = Divisor(tiles);
  }
  const bool aligned = PositionsAreAligned(batch);
  const auto enqueue = [&](auto element) {
    using T = typename decltype(element)::Type;
    return LaunchOverlapping(launch.limits, launch.stream,
                             aligned ? ColumnTiles<T, true> : ColumnTiles<T, false>, blocks,
                             kThreads, batch, splits);
  };
  switch (launch.spec.dtype) {
    case DType::kFloat16: return enqueue(ElementType<Half>());
    case DType::kBFloat16: return enqueue(ElementType<BFloat>());
    default: return enqueue(ElementType<float>());
  }
}

}  // namespace normd::norm::cuda
