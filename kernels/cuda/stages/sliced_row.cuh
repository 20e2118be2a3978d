// A block's slice of a row of sliced_rows.cu, from the loads to the results.

#ifndef NORMD_KERNELS_CUDA_STAGES_SLICED_ROW_CUH_
#define NORMD_KERNELS_CUDA_STAGES_SLICED_ROW_CUH_

#include "kernels/cuda/stages/channel_table.cuh"
#include "kernels/cuda/stages/ragged_run.cuh"
#include "kernels/cuda/stages/register_factors.cuh"
#include "kernels/cuda/stages/stage_elements.cuh"

namespace normd::norm::cuda {

// The division of a launch's rows into slices. A kernel parameter.
struct SliceCut {
  int blocks;  // Per row: a cluster, if there are several.
  int held;    // Vectors of a slice that stay in shared memory; the others are read again.
  int table;   // Entries of the ChannelTable; 0: there is none.
  // Elements are held in the accumulation type, because they are not rounded to their own.
  bool wide;
  bool whole;  // Nothing is read again.
};

// The vectors of each block's slice but the last. Blocks of quantized elements do not cross slices.
__host__ __device__ constexpr std::int64_t SliceVectors(int vectors, int blocks) {
  constexpr std::int64_t kTogether = 32;
  return ((vectors + blocks - 1) / blocks + kTogether - 1) / kTogether * kTogether;
}

// A block's part of a row, which has fewer than 2^31 elements.
struct Slice {
  int begin;     // The first element.
  int elements;  // May be none.

  __device__ Slice(const StageRow& row, int per_vector, int blocks, int rank) {
    const auto of_row = static_cast<int>(row.segment->elements);
    const std::int64_t most =
        SliceVectors((std::int64_t{of_row} + per_vector - 1) / per_vector, blocks) * per_vector;
    const std::int64_t first = rank * most;
    begin = static_cast<int>(first < of_row ? first : of_row);
    elements = static_cast<int>(of_row - begin < most ? of_row - begin : most);
  }
};

// The abilities of a kernel: Combine, input biases and statistics of absolutes need kAny.
enum class SliceForm {
  kAny,  // Elements move one by one.
  // Rows are contiguous at any addresses and move in vectors; whole slices are held. Channels come
  // from the table, or each element has one with gamma and beta at most. There are no gates.
  kRagged,
  // The batch is aligned, and a vector has one channel in the table, or one per element, whose
  // parameters 16-byte loads can fetch.
  kAligned,
};

template <typename ElementT, SliceForm kForm>
class SlicedRow {
  static constexpr bool kAligned = kForm == SliceForm::kAligned;
  static constexpr bool kRagged = kForm == SliceForm::kRagged;
  static constexpr bool kPacked = kAligned || kRagged;  // Vectors are held as they were loaded.

 public:
  using T = ElementT;
  using Team = StageTeam<>;
  static constexpr int kCount = kPerVector<T>;

  __device__ SlicedRow(const StageBatch& batch, const StageRow& row, const Team& team,
                       const Slice& slice, const SliceCut& cut, float4* memory)
      : batch_(batch),
        row_(row),
        team_(team),
        slice_(slice),
        access_(batch, row),
        bytes_((row.begin + slice.begin) * static_cast<int>(sizeof(T))),
        held_(cut.held),
        wide_(cut.wide),
        memory_(SharedAddress(memory)),
        table_(batch, row, slice.begin, slice.elements, cut.table,
               memory + (cut.wide ? 2 : 1) * cut.held) {}

  // All threads of the block call it together, before Sum.
  __device__ void FillTable() const { table_.Fill(); }

  // The statistics of the thread's part; adds, holds and writes residual_out.
  __device__ Moments<float> Sum() const {
    Moments<float> total;
#pragma unroll 1
    for (int first = team_.thread; first < vectors(); first += kFewVectors * team_.size()) {
      Chunk chunk;
      Read(first, chunk);
      const Moments<float> own = MomentsOfVectors<T, kFewVectors, !kPacked>(
          batch_.statistics,
          [&](int i, float(&values)[kCount]) {
            if constexpr (kPacked) {
              Unpack<T>(chunk[i], values);
            } else {
#pragma unroll
              for (int j = 0; j < kCount; ++j) values[j] = chunk[i][j];
            }
          },
          [&](int i) { return Present(first + i * team_.size()); });
      total = MergeStatistics(batch_.statistics, total, own);
    }
    return total;
  }

  __device__ int vectors() const { return (slice_.elements + kCount - 1) / kCount; }

  // The number of a vector's elements that exist.
  __device__ int Present(int vector) const {
    if (kAligned) return vector < vectors() ? kCount : 0;
    const int left = slice_.elements - vector * kCount;
    return vector >= vectors() ? 0 : left < kCount ? left : kCount;
  }

  // The results of an existing vector, as StageAccess::Result.
  __device__ void Result(int vector, const RowScale<float>& scale, float (&values)[kCount]) const {
    Again(vector, values);
    if (kForm == SliceForm::kAny && !table_.exists()) {
      access_.Result(At(vector), scale, 1.0f, 0.0f, values);
      return;
    }
    if (batch_.statistics == Statistics::kMeanVariance) {
      const float residue = -scale.residue * scale.rstd;
#pragma unroll
      for (float& value : values) value = Fma(value - scale.mean, scale.rstd, residue);
    } else {
#pragma unroll
      for (float& value : values) value *= scale.rstd;
    }
    if (batch_.affine) Modulate(vector, values);
    if (batch_.activation != Activation::kNone) {
      Activate<float>(batch_.activation, batch_.leaky_slope.narrow, values);
    }
    if (kForm == SliceForm::kAny && batch_.combine_output != Combine::kNone) {
      float others[kCount];
      access_.Load(row_.segment->other, At(vector), others);
      CombineWith(batch_.combine_output, values, others);
    }
  }

  // With kRagged the vector stays in shared memory, for FinishStores.
  __device__ void Store(int vector, int present, const float (&values)[kCount]) const {
    if constexpr (kRagged) {
      if (present > 0) WriteShared(PlaceOfHeld(vector), Pack<T>(values));
    } else {
      StoreTo(row_.segment->y, vector, present, Pack<T>(values), values);
    }
  }

  // With kRagged: stores residual_out after a barrier behind Sum. All threads of the block call it
  // together.
  __device__ void StoreSums() const {
    if (!kRagged || !batch_.residual_out) return;
    StoreRagged<T>(row_.segment->residual_out + bytes_, memory_, SliceBytes(), team_.thread,
                   team_.size());
    __syncthreads();
  }
  // With kRagged: stores the results that Store has left. All threads of the block call it
  // together.
  __device__ void FinishStores() const {
    if (!kRagged || batch_.quantization != Quantization::kNone) return;
    __syncthreads();
    StoreRagged<T>(row_.segment->y + bytes_, memory_, SliceBytes(), team_.thread, team_.size());
  }

  __device__ void StoreQuantized(int vector, int present, const float (&values)[kCount],
                                 float factor) const {
    if constexpr (kRagged) {
      StoreBytesAnywhere(row_.segment->y + row_.begin + slice_.begin + vector * kCount,
                         Quantize(batch_.quantization, values, factor), present);
    } else if (!kAligned) {
      access_.StoreQuantized(At(vector), values, factor);
    } else if (present > 0) {
      StoreBytes<kCount>(row_.segment->y + row_.begin + slice_.begin + vector * kCount,
                         Quantize(batch_.quantization, values, factor));
    }
  }

  // Whether a vector begins one of the row's blocks of quantized elements, and which.
  __device__ bool BeginsBlock(int vector, int* block) const {
    const int element = slice_.begin + vector * kCount;
    *block = element / static_cast<int>(kQuantizationBlock);
    return element % kQuantizationBlock == 0;
  }

 private:
  __device__ static void StoreBytesAnywhere(char* address, const uint2& bytes, int present) {
    if (present == kCount && reinterpret_cast<std::uintptr_t>(address) % kCount == 0) {
      StoreBytes<kCount>(address, bytes);
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < present) address[i] = static_cast<char>((i < 4 ? bytes.x : bytes.y) >> (i % 4 * 8));
    }
  }

  struct Kind {  // For LoadFactors.
    using Type = T;
    static constexpr bool kModulated = true;
  };

  // Vectors of a thread that are summed together.
  using Chunk = std::conditional_t<kPacked, Vector[kFewVectors], float[kFewVectors][kCount]>;

  __device__ StageElements At(int vector) const {
    return {slice_.begin + vector * kCount, Present(vector)};
  }
  __device__ std::int64_t Offset(int vector) const {
    return bytes_ + std::int64_t{vector} * kVectorBytes;
  }
  __device__ std::uint32_t PlaceOfHeld(int vector) const {
    return memory_ + static_cast<std::uint32_t>(vector) * kVectorBytes;
  }
  __device__ int SliceBytes() const { return slice_.elements * static_cast<int>(sizeof(T)); }
  // From the slice's begin to the tensor's end, if rows are contiguous.
  __device__ std::int64_t BytesLeft() const {
    const StageSegment* const segment = row_.segment;
    const std::uint32_t before = segment == batch_.segments ? 0 : segment[-1].end_row;
    return (segment->end_row - before) * segment->row_bytes - bytes_;
  }

  // Reads the normalized values of the thread's vectors `first`, first + team size and so on.
  __device__ void Read(int first, Chunk& chunk) const {
    float values[kCount];
    if constexpr (kPacked) {
      Vector residual[kFewVectors];
      LoadAll(row_.segment->x, first, chunk);
      if (batch_.residual) LoadAll(row_.segment->residual, first, residual);
#pragma unroll
      for (int i = 0; i < kFewVectors; ++i) {
        const int vector = first + i * team_.size();
        if (Present(vector) == 0) continue;
        if (batch_.residual) {
          Add(vector, chunk[i], residual[i], values);
          chunk[i] = Pack<T>(values);
        }
        Keep(vector, chunk[i], values);
      }
    } else {
      // Places are constants: a variable index would put the values into memory.
#pragma unroll 1
      for (int i = 0; i < kFewVectors; ++i) {
#pragma unroll
        for (int k = 0; k + 1 < kFewVectors; ++k) {
#pragma unroll
          for (int j = 0; j < kCount; ++j) chunk[k][j] = chunk[k + 1][j];
        }
        const int vector = first + i * team_.size();
        if (Present(vector) == 0) continue;
        access_.Input(At(vector), false, values);
#pragma unroll
        for (int j = 0; j < kCount; ++j) chunk[kFewVectors - 1][j] = values[j];
        Keep(vector, Pack<T>(values), values);
      }
    }
  }

  __device__ void LoadAll(const char* tensor, int first, Vector (&vectors)[kFewVectors]) const {
    const RaggedRun<T> run(tensor + bytes_, kRagged ? BytesLeft() : 0);
#pragma unroll
    for (int i = 0; i < kFewVectors; ++i) {
      const int vector = first + i * team_.size();
      if (Present(vector) == 0) continue;
      vectors[i] = kRagged ? run.Load(vector) : LoadVector(tensor + Offset(vector));
    }
  }

  // x times the gate plus the residual, as StageAccess::Input.
  __device__ void Add(int vector, const Vector& x, const Vector& residual,
                      float (&values)[kCount]) const {
    Unpack<T>(x, values);
    float others[kCount];
    if (!kRagged && batch_.gate) {
      if (table_.exists()) {
        const float gate = table_.Of(vector * kCount).z;
#pragma unroll
        for (float& other : others) other = gate;
      } else {
        LoadWhole<T>(row_.segment->gate,
                     row_.sample * batch_.channels + row_.first_channel + At(vector).first, others);
      }
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] *= others[j];
    }
    Unpack<T>(residual, others);
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] += others[j];
  }

  __device__ void StoreTo(char* tensor, int vector, int present, const Vector& packed,
                          const float (&values)[kCount]) const {
    if (!kAligned) {
      access_.Store(tensor, At(vector), values);
    } else if (present > 0) {
      StoreVector(tensor + Offset(vector), packed);
    }
  }

  __device__ void Keep(int vector, const Vector& packed, const float (&values)[kCount]) const {
    if (!kRagged && batch_.residual_out) {
      StoreTo(row_.segment->residual_out, vector, Present(vector), packed, values);
    }
    if (vector >= held_) return;
    const std::uint32_t place = PlaceOfHeld(vector);
    if (kPacked || !wide_) {
      WriteShared(place, packed);
    } else if constexpr (kCount == 8) {
      const float low[4] = {values[0], values[1], values[2], values[3]};
      const float high[4] = {values[4], values[5], values[6], values[7]};
      WriteShared(place, Pack<float>(low));
      WriteShared(place + held_ * kVectorBytes, Pack<float>(high));
    }
  }

  // The values that Keep was given.
  __device__ void Again(int vector, float (&values)[kCount]) const {
    if (kRagged || vector < held_) {
      const std::uint32_t place = PlaceOfHeld(vector);
      if (kPacked || !wide_) {
        Unpack<T>(ReadShared(place), values);
      } else if constexpr (kCount == 8) {
        float low[4], high[4];
        Unpack<float>(ReadShared(place), low);
        Unpack<float>(ReadShared(place + held_ * kVectorBytes), high);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          values[j] = low[j];
          values[4 + j] = high[j];
        }
      }
    } else if constexpr (kForm == SliceForm::kAny) {
      access_.Input(At(vector), batch_.residual_out, values);
    } else if (batch_.residual_out) {
      Unpack<T>(LoadVector(row_.segment->residual_out + Offset(vector)), values);
    } else {
      const Vector x = LoadVector(row_.segment->x + Offset(vector));
      Unpack<T>(x, values);
      if (!batch_.residual) return;
      Add(vector, x, LoadVector(row_.segment->residual + Offset(vector)), values);
      RoundTo<T>(values);
    }
  }

  // In T or float32 at any address.
  __device__ static void LoadGammaOrBeta(const ParamVector& param, int channel, int present,
                                         float absent, float (&values)[kCount]) {
#pragma unroll
    for (float& value : values) value = absent;
    if (param.data == nullptr) return;
    if (sizeof(T) == 4 || param.dtype == DType::kFloat32) {
      LoadParamsOf<float>(param.data, channel, present, values);
    } else {
      LoadParamsOf<T>(param.data, channel, present, values);
    }
  }

  __device__ void Modulate(int vector, float (&values)[kCount]) const {
    if (table_.exists()) {
      if (kAligned || (kRagged && table_.HasOneChannel(vector * kCount, Present(vector)))) {
        table_.template Modulate<true>(vector * kCount, Present(vector), values);
      } else {
        table_.template Modulate<false>(vector * kCount, Present(vector), values);
      }
      return;
    }
    float factor[kCount], offset[kCount];
    const int channel = static_cast<int>(row_.first_channel + At(vector).first);
    if constexpr (kRagged) {
      const int present = Present(vector);
      LoadGammaOrBeta(batch_.gamma, channel, present, 1, factor);
      if (batch_.gamma.data != nullptr) {
#pragma unroll
        for (float& value : factor) value += batch_.weight_offset.narrow;
      }
      LoadGammaOrBeta(batch_.beta, channel, present, 0, offset);
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] = Fma(values[j], factor[j], offset[j]);
      return;
    }
    const std::int64_t of_sample =
        (row_.sample * batch_.channels + channel) * static_cast<int>(sizeof(T));
    const StageSegment& segment = *row_.segment;
    LoadFactors<Kind>(batch_, channel, static_cast<const char*>(segment.scale) + of_sample,
                      static_cast<const char*>(segment.shift) + of_sample, factor, offset);
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] = Fma(values[j], factor[j], offset[j]);
  }

  const StageBatch& batch_;
  const StageRow& row_;
  const Team& team_;
  const Slice& slice_;
  const StageAccess<T> access_;
  const std::int64_t bytes_;  // From the first element of x to the slice's.
  const int held_;
  const bool wide_;
  const std::uint32_t memory_;
  const ChannelTable table_;
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_SLICED_ROW_CUH_
