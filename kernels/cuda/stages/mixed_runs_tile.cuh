// A tile of mixed_runs.cu: its rows, and their copies between the tensor and contiguous
// rows in shared memory.

#ifndef NORMD_KERNELS_CUDA_STAGES_MIXED_RUNS_TILE_CUH_
#define NORMD_KERNELS_CUDA_STAGES_MIXED_RUNS_TILE_CUH_

#include "kernels/cuda/device/memory.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/stages/mixed_runs_plan.h"
#include "kernels/cuda/stages/stage_batch.cuh"

namespace normd::norm::cuda {

// The unit that a thread moves: 16 bytes of one row, 16 bytes of a line whose elements belong to
// several rows or straddle runs, or one element.
enum class TileUnit { kVector, kSplitVector, kElement };

// How gamma and beta are loaded if there are no other parameters and rows are whole vectors: 16
// bytes of x's type, or of float, at once.
enum class TileParams : int { kAny, kOwnType, kFloat };

// MixedRunsPlan, and the kind of parameters. A kernel parameter beside StageBatch.
struct TileCut {
  Divisor units;  // In a whole line.
  Divisor runs;
  Divisor run;
  Divisor tiles;           // In a run of positions.
  Divisor runs_of_sample;  // Runs of positions in a sample.
  int positions;
  int run_positions;
  int lines;
  int elements;
  int chunks;
  int row_stride;
  int lanes;
  int parts;
  TileParams params;
};
static_assert(sizeof(StageBatch) + sizeof(TileCut) <= 4096, "what every device takes");

// The rows of a block. In the batch, tiles take the place of rows, and end_run counts runs of
// positions.
struct TilePlace {
  const StageSegment* segment;
  std::uint32_t first_run;       // In the segment.
  std::uint32_t first_position;  // In a run.
  int runs;                      // Runs of the tile that exist.
  int positions;

  __device__ int rows() const { return runs * positions; }
};

__device__ inline TilePlace FindTile(const StageBatch& batch, const TileCut& cut,
                                     std::uint32_t index) {
  int found = 0;
  while (index >= batch.segments[found].end_row) ++found;
  TilePlace place;
  place.segment = &batch.segments[found];
  const bool first = found == 0;
  const std::uint32_t local = index - (first ? 0 : place.segment[-1].end_row);
  const std::uint32_t runs = place.segment->end_run - (first ? 0 : place.segment[-1].end_run);
  const std::uint32_t outer = cut.tiles.Divide(local);
  place.first_run = outer * cut.runs.value();
  place.first_position = (local - outer * cut.tiles.value()) * static_cast<unsigned>(cut.positions);
  place.runs = static_cast<int>(min(cut.runs.value(), runs - place.first_run));
  place.positions = min(cut.positions, cut.run_positions - static_cast<int>(place.first_position));
  return place;
}

// A tile's rows, in shared memory.
struct TileRows {
  std::int64_t begins[kMostTileRows];    // Each run's first row, among the elements of x.
  std::uint32_t samples[kMostTileRows];  // Each row's sample.
};

// An element at its place in shared memory, in order with ReadShared and WriteShared.
template <typename T>
__device__ inline Bits<T> ReadSharedElement(std::uint32_t address) {
  Bits<T> bits;
  if constexpr (sizeof(T) == 4) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(bits) : "r"(address));
  } else {
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(address));
  }
  return bits;
}
template <typename T>
__device__ inline void WriteSharedElement(std::uint32_t address, Bits<T> bits) {
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(bits));
  } else {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(bits));
  }
}

// A row's channels of a chunk are adjacent in shared memory, in the order of the row.
template <typename T, TileUnit kUnit>
class MixedRunsTile {
 public:
  static constexpr int kCount = kPerVector<T>;
  static constexpr int kElements = kUnit == TileUnit::kElement ? 1 : kCount;  // Per unit.

  __device__ MixedRunsTile(const StageBatch& batch, const TileCut& cut, const TilePlace& place,
                           float4* memory, TileRows& rows)
      : batch_(batch), cut_(cut), place_(place), rows_(rows), memory_(SharedAddress(memory)) {
    const int most = static_cast<int>(cut.runs.value()) * cut.positions;
    const std::uint32_t offsets =
        most * cut.row_stride + (most + kCount - 1) / kCount * kVectorBytes;
    offsets_ = reinterpret_cast<std::uint32_t*>(memory + offsets / kVectorBytes);
  }

  __device__ int first_channel() const { return first_channel_; }
  // Elements of each row in the chunk.
  __device__ int elements() const { return lines_ * elements_; }
  __device__ std::uint32_t sample(int row) const { return rows_.samples[row]; }
  // A row's first vector; the others follow it.
  __device__ std::uint32_t RowAddress(std::uint32_t row) const {
    return memory_ + row * cut_.row_stride + row / kCount * kVectorBytes;
  }

  // All threads of the block call the following together, with a barrier before the results are
  // used.

  __device__ void FindRows() const {
    const auto run_positions = static_cast<std::uint32_t>(cut_.run_positions);
    for (int row = static_cast<int>(threadIdx.x); row < place_.rows();
         row += static_cast<int>(blockDim.x)) {
      const int run = row / cut_.positions;
      const std::uint32_t of_segment = place_.first_run + run;
      const std::uint32_t sample = cut_.runs_of_sample.Divide(of_segment);
      rows_.samples[row] = sample;
      if (row != run * cut_.positions) continue;
      const std::uint32_t of_sample = of_segment - sample * cut_.runs_of_sample.value();
      rows_.begins[run] = sample * place_.segment->spatial * batch_.channels +
                          batch_.runs.OfPosition(of_sample * run_positions + place_.first_position);
    }
  }

  // Finds the lines of a chunk. The copy of the previous chunk is still there.
  __device__ void Begin(int chunk) {
    const int run = static_cast<int>(cut_.run.value());
    const int channels = static_cast<int>(batch_.channels);
    if (cut_.elements == run) {
      first_channel_ = chunk * cut_.lines * run;
      lines_ = min(cut_.lines, (channels - first_channel_) / run);
      elements_ = run;
    } else {
      const int pieces = (run + cut_.elements - 1) / cut_.elements;
      const int in_run = chunk % pieces * cut_.elements;
      first_channel_ = chunk / pieces * run + in_run;
      lines_ = 1;
      elements_ = min(cut_.elements, run - in_run);
    }
    for (int line = static_cast<int>(threadIdx.x); line < lines_;
         line += static_cast<int>(blockDim.x)) {
      const std::int64_t place =
          batch_.runs.OfChannel(static_cast<std::uint32_t>(first_channel_ + line * run));
      offsets_[line] = static_cast<std::uint32_t>(place);
    }
  }

  // Copies the values to be normalized. `again`: residual_out has been written, if it is wanted.
  __device__ void CopyIn(bool again) const {
    const StageSegment& segment = *place_.segment;
    const bool summed = again && batch_.residual_out;
    Load(summed ? segment.residual_out : segment.x);
    if (batch_.residual && !summed) Add();
  }

  __device__ void CopyOut() const {
    char* const y = place_.segment->y;
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < Units(); i += static_cast<int>(blockDim.x)) {
      const Place place = Find(i);
      if (place.exists) Write(y + place.offset, Take(place));
    }
  }

 private:
  using Value = std::conditional_t<kUnit == TileUnit::kElement, Bits<T>, Vector>;

  // The place of a unit.
  struct Place {
    bool exists;
    std::uint32_t row;
    std::uint32_t in_run;   // Its first element within a run.
    std::uint32_t address;  // Its address in shared memory.
    std::int64_t offset;    // In a tensor, in bytes.
  };

  __device__ int Units() const {
    return lines_ * static_cast<int>(cut_.runs.value() * cut_.units.value());
  }

  // Units lie in the order of lines, runs of positions, elements.
  __device__ Place Find(int index) const {
    const std::uint32_t outer = cut_.units.Divide(static_cast<std::uint32_t>(index));
    const std::uint32_t element =
        (static_cast<std::uint32_t>(index) - outer * cut_.units.value()) * kElements;
    const std::uint32_t line = cut_.runs.Divide(outer);
    const std::uint32_t run = outer - line * cut_.runs.value();
    const std::uint32_t position = cut_.run.Divide(element);
    Place place;
    place.exists = index < Units() && static_cast<int>(run) < place_.runs &&
                   static_cast<int>(element) < place_.positions * elements_;
    place.row = run * cut_.positions + position;
    place.in_run = element - position * cut_.run.value();
    place.address = RowAddress(place.row) +
                    (line * elements_ + place.in_run) * static_cast<std::uint32_t>(sizeof(T));
    // Units that do not exist are loaded from the tile's begin.
    const std::int64_t in_tensor =
        place.exists ? rows_.begins[run] + offsets_[line] + element : rows_.begins[0] + offsets_[0];
    place.offset = in_tensor * static_cast<int>(sizeof(T));
    return place;
  }

  // Calls visit(j, address) for each element of a unit, by its address in shared memory.
  template <typename Visit>
  __device__ void ForElements(const Place& place, Visit visit) const {
    if (cut_.run.value() == 1) {  // Rows of one unit have no vector between them.
#pragma unroll
      for (int j = 0; j < kCount; ++j) visit(j, place.address + j * cut_.row_stride);
      return;
    }
    const std::uint32_t of_row = place.address - RowAddress(place.row);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const std::uint32_t rows = cut_.run.Divide(place.in_run + j);
      const std::uint32_t in_run = j - rows * cut_.run.value();  // From the first element's place.
      visit(j,
            RowAddress(place.row + rows) + of_row + in_run * static_cast<std::uint32_t>(sizeof(T)));
    }
  }

  __device__ static std::uint32_t ElementBits(const Vector& vector, int j) {
    if constexpr (sizeof(T) == 4) return WordOf(vector, j);
    return WordOf(vector, j / 2) >> (j % 2 * 16) & 0xffffu;
  }

  __device__ void Put(const Place& place, const Value& value) const {
    if constexpr (kUnit == TileUnit::kVector) {
      WriteShared(place.address, value);
    } else if constexpr (kUnit == TileUnit::kElement) {
      WriteSharedElement<T>(place.address, value);
    } else {
      ForElements(place, [&](int j, std::uint32_t at) {
        WriteSharedElement<T>(at, static_cast<Bits<T>>(ElementBits(value, j)));
      });
    }
  }

  __device__ Value Take(const Place& place) const {
    if constexpr (kUnit == TileUnit::kVector) {
      return ReadShared(place.address);
    } else if constexpr (kUnit == TileUnit::kElement) {
      return ReadSharedElement<T>(place.address);
    } else {
      std::uint32_t words[4] = {0, 0, 0, 0};
      ForElements(place, [&](int j, std::uint32_t at) {
        const std::uint32_t bits = ReadSharedElement<T>(at);
        if constexpr (sizeof(T) == 4) {
          words[j] = bits;
        } else {
          words[j / 2] |= bits << (j % 2 * 16);
        }
      });
      return make_uint4(words[0], words[1], words[2], words[3]);
    }
  }

  __device__ static Value Read(const char* address) {
    if constexpr (kUnit == TileUnit::kElement) {
      return *reinterpret_cast<const Bits<T>*>(address);
    } else {
      return LoadVector(address);
    }
  }
  __device__ static void Write(char* address, const Value& value) {
    *reinterpret_cast<Value*>(address) = value;
  }

  // Several of a thread's units are in flight at once.
  __device__ void Load(const char* tensor) const {
    constexpr int kFlight = 4;
    const int step = static_cast<int>(blockDim.x);
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x); first < Units(); first += kFlight * step) {
      Place places[kFlight];
      Value values[kFlight];
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        places[i] = Find(first + i * step);
        values[i] = Read(tensor + places[i].offset);
      }
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        if (places[i].exists) Put(places[i], values[i]);
      }
    }
  }

  // Adds the residual to the elements that this thread has copied there.
  __device__ void Add() const {
    const StageSegment& segment = *place_.segment;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < Units(); i += static_cast<int>(blockDim.x)) {
      const Place place = Find(i);
      if (!place.exists) continue;
      const Value residual = Read(segment.residual + place.offset);
      const Value sum = Sum(Take(place), residual);
      Put(place, sum);
      if (batch_.residual_out) Write(segment.residual_out + place.offset, sum);
    }
  }

  __device__ static Value Sum(const Value& a, const Value& b) {
    if constexpr (kUnit == TileUnit::kElement) {
      return BitCast<Bits<T>>(Narrow<T>(Widen(BitCast<T>(a)) + Widen(BitCast<T>(b))));
    } else {
      float sums[kCount], others[kCount];
      Unpack<T>(a, sums);
      Unpack<T>(b, others);
#pragma unroll
      for (int j = 0; j < kCount; ++j) sums[j] += others[j];
      return Pack<T>(sums);
    }
  }

  const StageBatch& batch_;
  const TileCut& cut_;
  const TilePlace& place_;
  TileRows& rows_;
  const std::uint32_t memory_;
  std::uint32_t* offsets_;  // For a chunk's lines, in elements of a sample.
  int first_channel_ = 0;
  int lines_ = 0;
  int elements_ = 0;  // A row's part of a line.
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_MIXED_RUNS_TILE_CUH_
