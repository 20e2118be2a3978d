// How the kernels of rows over several blocks find gamma and beta. The kind is a template argument,
// so that the loops over a chunk hold nothing but their own arithmetic:
//   RunChannels<T, Activations>     a warp's run covers one channel, or two that join at a vector's
//                                   boundary;
//   RunElements<T, P, Activations>  gamma and perhaps beta for each element, of type P, in 16-byte
//                                   loads;
//   RunWords<P>                     the same in rows that are not aligned, by words, or one gamma
//                                   and beta for all of a row, if P is RowParams;
//   RunGeneral                          everything else.
//
// Activations is OneActivation<...>, whose code the compiler interleaves with the rest, its kind
// TanhSilu, or EachActivation, which branches once for each chunk.

#ifndef NORMD_KERNELS_CUDA_ROWS_RUN_PARAMS_CUH_
#define NORMD_KERNELS_CUDA_ROWS_RUN_PARAMS_CUH_

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/cache_policy.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/rows/row_plan.h"
#include "kernels/cuda/rows/silu_by_tanh.cuh"
#include "kernels/cuda/rows/staging_ring.cuh"
#include "kernels/cuda/rows/vector_tile.cuh"

namespace normd::norm::cuda {

// The same part of every row.
struct RunPlace {
  std::int64_t begin;  // In bytes.
  int bytes;           // A multiple of kStepBytes.
};

template <Activation kActivation>
struct OneActivation {
  template <typename Function>
  __device__ static void With(Activation, Function function) {
    function(std::integral_constant<Activation, kActivation>());
  }
};
struct EachActivation {  // Any activation except kNone.
  template <typename Function>
  __device__ static void With(Activation activation, Function function) {
    switch (activation) {
      case Activation::kRelu: OneActivation<Activation::kRelu>::With(activation, function); break;
      case Activation::kSilu: OneActivation<Activation::kSilu>::With(activation, function); break;
      case Activation::kGeluErf:
        OneActivation<Activation::kGeluErf>::With(activation, function);
        break;
      case Activation::kGeluTanh:
        OneActivation<Activation::kGeluTanh>::With(activation, function);
        break;
      default: OneActivation<Activation::kLeakyRelu>::With(activation, function); break;
    }
  }
};
using NoActivation = OneActivation<Activation::kNone>;
using PlainSilu = OneActivation<Activation::kSilu>;
// For RunChannels: float16 results take tanh where it is accurate.
struct TanhSilu : PlainSilu {};

// Each kind has the number of a run's parameter bytes that all rows share.
struct RunGeneral {
  static int RunParamBytes(const Launch&) { return 0; }
};

// These parameters stay in shared memory, with zeros for an absent beta.
template <typename P>
struct RunWords {
  // All rows must share them; 0 if they do not. T: the rows' type.
  template <typename T>
  static int RunParamBytes(const Launch& launch) {
    return launch.spec.groups > 1 ? 0 : 2 * ArrayBytes<T>(launch.plan.vectors * kStepBytes);
  }
  // The bytes of an array for a run of `bytes`.
  template <typename T>
  __host__ __device__ static constexpr int ArrayBytes(int run_bytes) {
    return run_bytes / static_cast<int>(sizeof(T)) * static_cast<int>(sizeof(P));
  }
};

template <typename T, typename Activations>
class RunChannels {
 public:
  using A = Accumulator<T>;
  static constexpr bool kByTanh = kHasSiluByTanh<T> && std::is_same_v<Activations, TanhSilu>;

  static int RunParamBytes(const Launch&) { return 0; }

  // Where a run's parameters are.
  struct Place {
    int channel = 0;
    int second = 0;  // The byte of the run at which the next channel begins.
  };

  __device__ RunChannels(const RowBatch& batch, const RunPlace& place, std::uint32_t)
      : batch_(batch), place_(place) {}

  __device__ void Fetch() const {}

  __device__ Place Find(const Row& row, int bytes) const {
    Place found = {static_cast<int>(row.first_channel), bytes};
    if (batch_.channels_per_group == 1 || bytes == 0) return found;
    const auto begin = static_cast<std::uint32_t>(place_.begin / static_cast<int>(sizeof(T)));
    const std::uint32_t channel = row.spatial_divisor.Divide(begin);
    const std::int64_t end = (channel + 1) * row.spatial * static_cast<int>(sizeof(T));
    found.channel += static_cast<int>(channel);
    found.second = static_cast<int>(min(end - place_.begin, std::int64_t{bytes}));
    return found;
  }

  // Loads a run's parameters.
  __device__ void Load(const Place& found, int bytes) {
    const int next = found.channel + (found.second < bytes ? 1 : 0);
    first_ = {LoadParam(batch_.gamma, found.channel, A(1)),
              LoadParam(batch_.beta, found.channel, A(0))};
    second_ = {LoadParam(batch_.gamma, next, A(1)), LoadParam(batch_.beta, next, A(0))};
  }

  __device__ void Use(const RowScale<A>& scale) {
    scale_ = RunScale<T>(scale);
    first_ = scale_.Factors(first_.factor, first_.offset);
    second_ = scale_.Factors(second_.factor, second_.offset);
    if constexpr (kByTanh) {
      first_ = {first_.factor * A(0.5), first_.offset * A(0.5)};
      second_ = {second_.factor * A(0.5), second_.offset * A(0.5)};
    }
  }

  // Turns a lane's part of chunk `index` into results.
  __device__ void Scale(const Place& found, int index, int, int lane,
                        Vector (&chunk)[kChunkVectors]) const {
    // Where the second channel begins, in bytes from the lane's first vector of the chunk on.
    const int second = found.second - index * kChunkBytes - lane * kVectorBytes;
    if constexpr (kByTanh) {
      ScaleAllByTanh(second, chunk);
    } else {
      Activations::With(batch_.activation, [&](auto activation) {
#pragma unroll
        for (int i = 0; i < kChunkVectors; ++i) {
          A values[kPerVector<T>];
          ScaleVector(chunk[i], second <= i * kStepBytes, values);
#pragma unroll
          for (A& value : values) {
            value = Activate<T, decltype(activation)::value>(value, batch_.leaky_slope.As<A>());
          }
          chunk[i] = Pack<T>(values);
        }
      });
    }
  }

  // With kByTanh: the same vector by vector, which takes fewer registers. `second` is the byte at
  // which the next channel begins, from the lane's first vector on.
  __device__ void ScaleEachByTanh(int second, Vector (&chunk)[kChunkVectors]) const {
#pragma unroll
    for (int i = 0; i < kChunkVectors; ++i) {
      A halves[kPerVector<T>];
      ScaleVector(chunk[i], second <= i * kStepBytes, halves);
      SiluOfHalves<T>(halves);
      chunk[i] = Pack<T>(halves);
    }
  }

 private:
  // All steps before the activation; with kByTanh half of the value.
  __device__ void ScaleVector(const Vector& vector, bool is_second,
                              A (&values)[kPerVector<T>]) const {
    const ChannelFactors<A> factors = {is_second ? second_.factor : first_.factor,
                                       is_second ? second_.offset : first_.offset};
    Unpack<T>(vector, values);
#pragma unroll
    for (A& value : values) value = scale_.ByChannel(value, factors);
  }

  // One branch for the chunk lets its vectors overlap; one for each would not.
  __device__ void ScaleAllByTanh(int second, Vector (&chunk)[kChunkVectors]) const {
    Vector results[kChunkVectors];
    bool all = true;
#pragma unroll
    for (int i = 0; i < kChunkVectors; ++i) {
      A halves[kPerVector<T>];
      ScaleVector(chunk[i], second <= i * kStepBytes, halves);
      all &= AllByTanh(halves);
#pragma unroll
      for (A& h : halves) h = SiluByTanh(h);
      results[i] = Pack<T>(halves);
    }
    if (!all) return ScaleEachByTanh(second, chunk);
#pragma unroll
    for (int i = 0; i < kChunkVectors; ++i) chunk[i] = results[i];
  }

  const RowBatch& batch_;
  const RunPlace place_;
  RunScale<T> scale_{RowScale<A>()};
  ChannelFactors<A> first_;  // Gamma and beta, until Use.
  ChannelFactors<A> second_;
};

// kResident: they are in shared memory in every launch, with zeros for an absent beta. The loops
// then have no branches, which would make loads wait.
template <typename T, typename P, typename Activations, bool kResident = false>
class RunElements {
 public:
  using A = Accumulator<T>;

  static int RunParamBytes(const Launch& launch) {
    if (launch.spec.groups > 1) return 0;
    const int arrays = launch.params.beta.data == nullptr && !kResident ? 1 : 2;
    return arrays * WholeChunks(launch.plan.vectors) * kParts * kStepBytes;
  }

  struct Place {
    std::int64_t element = 0;  // The run's first in gamma and beta.
  };

  // If `memory`, an address in shared memory, is not 0, all rows share the parameters, and they
  // stay there.
  __device__ RunElements(const RowBatch& batch, const RunPlace& place, std::uint32_t memory)
      : batch_(batch), place_(place), memory_(memory) {}

  // Loads the parameters that stay. The calling lane can read them after AwaitCopies; after a
  // barrier behind that, so can the same lane of other warps with the same run.
  __device__ void Fetch() const {
    if (!kResident && memory_ == 0) return;
    const Row row = FindRow(batch_, 0);
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const std::int64_t begin = place_.begin / static_cast<int>(sizeof(T));
    const int steps = WholeChunks(place_.bytes / kStepBytes);
    for (int i = 0; i < steps; ++i) {
      const std::int64_t element = begin + (i * kLanes + lane) * kPerVector<T>;
      if (element >= row.elements) break;
#pragma unroll
      for (int k = 0; k < kParts; ++k) {
        const std::uint32_t to = SharedPlace(i, k, lane);
        CopyToShared(to, Address(batch_.gamma, element, k));
        const std::uint32_t beta = to + steps * kParts * kStepBytes;
        if (batch_.beta.data != nullptr) {
          CopyToShared(beta, Address(batch_.beta, element, k));
        } else if (kResident) {
          WriteShared(beta, make_uint4(0, 0, 0, 0));
        }
      }
    }
  }

  __device__ Place Find(const Row& row, int) const {
    return {row.first_channel + place_.begin / static_cast<int>(sizeof(T))};
  }
  __device__ void Load(const Place&, int) {}
  __device__ void Use(const RowScale<A>& scale) { scale_ = scale; }

  // `left`: bytes of the run from the lane's first vector on.
  __device__ void Scale(const Place& found, int index, int left, int lane,
                        Vector (&chunk)[kChunkVectors]) const {
    Activations::With(batch_.activation, [&](auto activation) {
#pragma unroll
      for (int first = 0; first < kChunkVectors; first += kStride) {
        const int step = index * kChunkVectors + first;
        Vector gamma[kStride][kParts], beta[kStride][kParts];
        Read(found, step, left, lane, gamma, beta);
#pragma unroll
        for (int i = 0; i < kStride; ++i) {
          A gammas[kPerVector<T>], betas[kPerVector<T>];
          Widened(gamma[i], gammas);
          Widened(beta[i], betas);
          chunk[first + i] = Scaled<decltype(activation)::value>(chunk[first + i], gammas, betas);
        }
      }
    });
  }

 private:
  static constexpr int kParts = kPerVector<T> / kPerVector<P>;  // Vectors of P for one of T.
  // Vectors that are scaled at a time: more would leave no registers for their parameters.
  static constexpr int kStride = kChunkVectors / kParts;

  static constexpr int WholeChunks(int vectors) {
    return (vectors + kChunkVectors - 1) / kChunkVectors * kChunkVectors;
  }

  __device__ std::uint32_t SharedPlace(int step, int part, int lane) const {
    return memory_ + (step * kParts + part) * kStepBytes + lane * kVectorBytes;
  }
  __device__ static const uint4* Address(const ParamVector& param, std::int64_t element, int part) {
    return reinterpret_cast<const uint4*>(static_cast<const P*>(param.data) + element) + part;
  }

  // The parameters of kStride vectors of a lane.
  __device__ void Read(const Place& found, int step, int left, int lane,
                       Vector (&gamma)[kStride][kParts], Vector (&beta)[kStride][kParts]) const {
    const int steps = WholeChunks(place_.bytes / kStepBytes);
    if constexpr (kResident) {
      // Elements after the row's end are read too, but not stored.
      ReadAll(SharedPlace(step, 0, lane), gamma);
      ReadAll(SharedPlace(step, 0, lane) + steps * kParts * kStepBytes, beta);
    } else {
      const bool has_beta = batch_.beta.data != nullptr;
      if (memory_ != 0) {
        const std::uint32_t from = SharedPlace(step, 0, lane);
        ReadAll(from, gamma);
        if (has_beta) ReadAll(from + steps * kParts * kStepBytes, beta);
      } else {
        const std::int64_t element = found.element + (step * kLanes + lane) * kPerVector<T>;
        const int rest = left - step * kStepBytes;
        LoadAll(batch_.gamma, element, rest, gamma);
        if (has_beta) LoadAll(batch_.beta, element, rest, beta);
      }
      if (has_beta) return;
#pragma unroll
      for (auto& parts : beta) {
#pragma unroll
        for (Vector& part : parts) part = make_uint4(0, 0, 0, 0);
      }
    }
  }
  __device__ static void ReadAll(std::uint32_t from, Vector (&values)[kStride][kParts]) {
#pragma unroll
    for (int i = 0; i < kStride * kParts; ++i) {
      values[i / kParts][i % kParts] = ReadShared(from + i * kStepBytes);
    }
  }
  // The parameters of vectors that exist: `rest` bytes exist from the lane's first one on.
  __device__ static void LoadAll(const ParamVector& param, std::int64_t element, int rest,
                                 Vector (&values)[kStride][kParts]) {
#pragma unroll
    for (int i = 0; i < kStride; ++i) {
#pragma unroll
      for (int k = 0; k < kParts; ++k) {
        values[i][k] = make_uint4(0, 0, 0, 0);
        if (i * kStepBytes >= rest) continue;
        values[i][k] = LoadKept(Address(param, element + i * kLanes * kPerVector<T>, k));
      }
    }
  }
  __device__ static void Widened(const Vector (&parts)[kParts], A (&values)[kPerVector<T>]) {
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      Accumulator<P> part[kPerVector<P>];
      Unpack<P>(parts[k], part);
#pragma unroll
      for (int j = 0; j < kPerVector<P>; ++j) {
        values[k * kPerVector<P> + j] = static_cast<A>(part[j]);
      }
    }
  }

  template <Activation kActivation>
  __device__ Vector Scaled(const Vector& vector, const A (&gammas)[kPerVector<T>],
                           const A (&betas)[kPerVector<T>]) const {
    const RunScale<T> scale(scale_);
    A values[kPerVector<T>];
    Unpack<T>(vector, values);
#pragma unroll
    for (int j = 0; j < kPerVector<T>; ++j) {
      values[j] = Activate<T, kActivation>(scale.ByElement(values[j], gammas[j], betas[j]),
                                           batch_.leaky_slope.As<A>());
    }
    return Pack<T>(values);
  }

  const RowBatch& batch_;
  const RunPlace place_;
  const std::uint32_t memory_;
  RowScale<A> scale_;
};

// Whether RunChannels<T, ...> serves the batch, apart from the activation.
template <typename T>
bool AreRunChannels(const Launch& launch, const RowBatch& batch) {
  if (launch.spec.channels > std::numeric_limits<std::int32_t>::max()) return false;
  if (batch.channels_per_group == 1) return true;
  for (int i = 0; i < batch.segment_count; ++i) {
    const std::int64_t bytes = batch.segments[i].spatial * static_cast<std::int64_t>(sizeof(T));
    if (bytes < launch.plan.vectors * kStepBytes || bytes % kVectorBytes != 0) return false;
  }
  return true;
}

// Calls function(kind) with a RunKind<Params> for the parameters of an aligned batch.
template <typename Params>
struct RunKind {
  using Type = Params;
};

// float64, which is not meant to be fast, has code of its own for the simplest kind only. So has
// the rare case without kActivated: parameters of elements with an activation. Silu: PlainSilu or
// TanhSilu.
template <typename T, bool kActivated, typename Silu, typename Function>
cudaError_t WithRunKind(const Launch& launch, const RowBatch& batch, Function function) {
  const bool plain = launch.spec.activation == Activation::kNone;
  const auto elements = [&](auto param) -> cudaError_t {
    using P = typename decltype(param)::Type;
    if constexpr (kActivated) {
      if (!plain) return function(RunKind<RunElements<T, P, EachActivation>>());
    }
    return plain ? function(RunKind<RunElements<T, P, NoActivation>>())
                 : function(RunKind<RunGeneral>());
  };
  if constexpr (!std::is_same_v<T, double>) {
    if (AreElementParams<T>(launch, batch)) return elements(ElementType<T>());
  }
  if constexpr (sizeof(T) == 2) {
    if (AreElementParams<float>(launch, batch)) return elements(ElementType<float>());
  }
  if (AreRunChannels<T>(launch, batch)) {
    if (plain) return function(RunKind<RunChannels<T, NoActivation>>());
    if constexpr (!std::is_same_v<T, double>) {
      return launch.spec.activation == Activation::kSilu
                 ? function(RunKind<RunChannels<T, Silu>>())
                 : function(RunKind<RunChannels<T, EachActivation>>());
    }
  }
  return function(RunKind<RunGeneral>());
}

// Calls function for every kind that WithRunKind knows, until one returns an error.
template <typename T, bool kActivated, typename Silu, typename Function>
cudaError_t ForEachRunKind(Function function) {
  cudaError_t error = function(RunKind<RunGeneral>());
  const auto next = [&](auto kind) {
    if (error == cudaSuccess) error = function(kind);
  };
  const auto elements = [&](auto param) {
    using P = typename decltype(param)::Type;
    next(RunKind<RunElements<T, P, NoActivation>>());
    if constexpr (kActivated) next(RunKind<RunElements<T, P, EachActivation>>());
  };
  next(RunKind<RunChannels<T, NoActivation>>());
  if constexpr (!std::is_same_v<T, double>) {
    next(RunKind<RunChannels<T, Silu>>());
    next(RunKind<RunChannels<T, EachActivation>>());
    elements(ElementType<T>());
  }
  if constexpr (sizeof(T) == 2) elements(ElementType<float>());
  return error;
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_RUN_PARAMS_CUH_
