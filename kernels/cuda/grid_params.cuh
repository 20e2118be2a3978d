// How the grid kernels find gamma and beta. The kind is a template argument, so that the loops over
// a chunk hold nothing but their own arithmetic:
//   GridChannels<T, kActivation>  a run of a warp meets one channel, or two that meet at a
//   granule's
//                                 boundary;
//   GridElements<T, P>            gamma and perhaps beta for each element, of type P, in 16-byte
//                                 loads; no activation;
//   GridAny                       everything else, and rows that are not aligned.

#ifndef NORMD_KERNELS_CUDA_GRID_PARAMS_CUH_
#define NORMD_KERNELS_CUDA_GRID_PARAMS_CUH_

#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/held_run.cuh"
#include "kernels/cuda/landing.cuh"
#include "kernels/cuda/moments.cuh"

namespace normd::norm::cuda {

// Each knows how many bytes of parameters a warp's run has that every row meets alike.
struct GridAny {
  static int RunParamBytes(const Launch&) { return 0; }
};

template <typename T, Activation kActivation>
class GridChannels {
 public:
  using A = Accumulator<T>;

  static int RunParamBytes(const Launch&) { return 0; }

  // Where a run's parameters are.
  struct Place {
    int channel = 0;
    int second = 0;  // The byte of the run where the next channel begins.
  };

  __device__ GridChannels(const RowBatch& batch, const LandingPlace& place, std::uint32_t)
      : batch_(batch), place_(place) {}

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

  // Asks for a run's parameters.
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
  }

  // Turns a lane's part of chunk `index` into results.
  __device__ void Scale(const Place& found, int index, int, int lane,
                        Granule (&chunk)[kChunkGranules]) const {
#pragma unroll
    for (int i = 0; i < kChunkGranules; ++i) {
      const int offset = index * kChunkBytes + i * kStepBytes + lane * kGranuleBytes;
      const bool beyond = offset >= found.second;
      const ChannelFactors<A> factors = {beyond ? second_.factor : first_.factor,
                                         beyond ? second_.offset : first_.offset};
      A values[kPerGranule<T>];
      Unpack<T>(chunk[i], values);
#pragma unroll
      for (A& value : values) {
        value = Activate<T, kActivation>(scale_.ByChannel(value, factors), batch_.leaky_slope);
      }
      chunk[i] = Pack<T>(values);
    }
  }

 private:
  const RowBatch& batch_;
  const LandingPlace place_;
  RunScale<T> scale_{RowScale<A>()};
  ChannelFactors<A> first_;  // Gamma and beta, until Use.
  ChannelFactors<A> second_;
};

template <typename T, typename P>
class GridElements {
 public:
  using A = Accumulator<T>;

  static int RunParamBytes(const Launch& launch) {
    if (launch.spec.groups > 1) return 0;
    const int vectors = launch.params.beta.data == nullptr ? 1 : 2;
    return vectors * WholeChunks(launch.plan.granules) * kParts * kStepBytes;
  }

  struct Place {
    std::int64_t element = 0;  // Of gamma and beta, the run's first.
  };

  // Where `memory`, an address in shared memory, is not 0, every row meets the same parameters, and
  // they stay there: each lane writes what it alone reads.
  __device__ GridElements(const RowBatch& batch, const LandingPlace& place, std::uint32_t memory)
      : batch_(batch), place_(place), memory_(memory) {
    if (memory == 0) return;
    const Row row = FindRow(batch, 0);
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const std::int64_t begin = place.begin / static_cast<int>(sizeof(T));
    const int steps = WholeChunks(place.run_bytes / kStepBytes);
    for (int i = 0; i < steps; ++i) {
      const std::int64_t element = begin + (i * kLanes + lane) * kPerGranule<T>;
      if (element >= row.elements) break;
#pragma unroll
      for (int k = 0; k < kParts; ++k) {
        const std::uint32_t to = SharedPlace(i, k, lane);
        WriteShared(to, FromDevice(batch.gamma, element, k));
        if (batch.beta.data == nullptr) continue;
        WriteShared(to + steps * kParts * kStepBytes, FromDevice(batch.beta, element, k));
      }
    }
  }

  __device__ Place Find(const Row& row, int) const {
    return {row.first_channel + place_.begin / static_cast<int>(sizeof(T))};
  }
  __device__ void Load(const Place&, int) {}
  __device__ void Use(const RowScale<A>& scale) { scale_ = scale; }

  // `left`: bytes of the run from the lane's first granule on.
  __device__ void Scale(const Place& found, int index, int left, int lane,
                        Granule (&chunk)[kChunkGranules]) const {
    const RunScale<T> run_scale(scale_);
    const int steps = WholeChunks(place_.run_bytes / kStepBytes);
    const bool has_beta = batch_.beta.data != nullptr;
    Granule gamma[kChunkGranules][kParts], beta[kChunkGranules][kParts];
    if (memory_ != 0) {
      // What lies behind the row's end is read too, and then not stored.
      const std::uint32_t from = SharedPlace(index * kChunkGranules, 0, lane);
      ReadAll(from, gamma);
      if (has_beta) ReadAll(from + steps * kParts * kStepBytes, beta);
    } else {
      const std::int64_t element =
          found.element + (index * kChunkGranules * kLanes + lane) * kPerGranule<T>;
      const int rest = left - index * kChunkBytes;
      LoadAll(batch_.gamma, element, rest, gamma);
      if (has_beta) LoadAll(batch_.beta, element, rest, beta);
    }
    if (!has_beta) {
#pragma unroll
      for (auto& parts : beta) {
#pragma unroll
        for (Granule& part : parts) part = make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int i = 0; i < kChunkGranules; ++i) {
      A gammas[kPerGranule<T>], betas[kPerGranule<T>];
      Widened(gamma[i], gammas);
      Widened(beta[i], betas);
      A values[kPerGranule<T>];
      Unpack<T>(chunk[i], values);
#pragma unroll
      for (int j = 0; j < kPerGranule<T>; ++j) {
        values[j] = run_scale.ByElement(values[j], gammas[j], betas[j]);
      }
      chunk[i] = Pack<T>(values);
    }
  }

 private:
  static constexpr int kParts = kPerGranule<T> / kPerGranule<P>;  // Granules of P for one of T.

  static constexpr int WholeChunks(int granules) {
    return (granules + kChunkGranules - 1) / kChunkGranules * kChunkGranules;
  }

  __device__ std::uint32_t SharedPlace(int step, int part, int lane) const {
    return memory_ + (step * kParts + part) * kStepBytes + lane * kGranuleBytes;
  }
  __device__ static Granule FromDevice(const ParamVector& param, std::int64_t element, int part) {
    return LoadKept(reinterpret_cast<const uint4*>(static_cast<const P*>(param.data) + element) +
                    part);
  }
  __device__ static void ReadAll(std::uint32_t from, Granule (&values)[kChunkGranules][kParts]) {
#pragma unroll
    for (int i = 0; i < kChunkGranules * kParts; ++i) {
      values[i / kParts][i % kParts] = ReadShared(from + i * kStepBytes);
    }
  }
  // Those of granules that exist: `rest` bytes do from the lane's first one on.
  __device__ static void LoadAll(const ParamVector& param, std::int64_t element, int rest,
                                 Granule (&values)[kChunkGranules][kParts]) {
#pragma unroll
    for (int i = 0; i < kChunkGranules; ++i) {
#pragma unroll
      for (int k = 0; k < kParts; ++k) {
        values[i][k] = make_uint4(0, 0, 0, 0);
        if (i * kStepBytes >= rest) continue;
        values[i][k] = FromDevice(param, element + i * kLanes * kPerGranule<T>, k);
      }
    }
  }
  __device__ static void Widened(const Granule (&parts)[kParts], A (&values)[kPerGranule<T>]) {
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      Accumulator<P> part[kPerGranule<P>];
      Unpack<P>(parts[k], part);
#pragma unroll
      for (int j = 0; j < kPerGranule<P>; ++j) {
        values[k * kPerGranule<P> + j] = static_cast<A>(part[j]);
      }
    }
  }

  const RowBatch& batch_;
  const LandingPlace place_;
  const std::uint32_t memory_;
  RowScale<A> scale_;
};

// Whether GridChannels<T, ...> serves the batch, apart from the activation.
template <typename T>
bool AreGridChannels(const Launch& launch, const RowBatch& batch) {
  if (launch.spec.channels > std::numeric_limits<std::int32_t>::max()) return false;
  if (batch.channels_per_group == 1) return true;
  for (int i = 0; i < batch.segment_count; ++i) {
    const std::int64_t bytes = batch.segments[i].spatial * static_cast<std::int64_t>(sizeof(T));
    if (bytes < launch.plan.granules * kStepBytes || bytes % kGranuleBytes != 0) return false;
  }
  return true;
}

// Calls function(kind) with a GridKind<Params> for the parameters of an aligned batch.
template <typename Params>
struct GridKind {
  using Type = Params;
};

template <typename T, typename Function>
cudaError_t WithGridKind(const Launch& launch, const RowBatch& batch, Function function) {
  const bool plain = launch.spec.activation == Activation::kNone;
  if (plain && AreElementParams<T>(launch, batch)) return function(GridKind<GridElements<T, T>>());
  if constexpr (sizeof(T) == 2) {
    if (plain && AreElementParams<float>(launch, batch)) {
      return function(GridKind<GridElements<T, float>>());
    }
  }
  if (AreGridChannels<T>(launch, batch)) {
    if (plain) return function(GridKind<GridChannels<T, Activation::kNone>>());
    if (launch.spec.activation == Activation::kSilu) {
      return function(GridKind<GridChannels<T, Activation::kSilu>>());
    }
  }
  return function(GridKind<GridAny>());
}

// Calls function for every kind that WithGridKind knows, until one returns an error.
template <typename T, typename Function>
cudaError_t ForEachGridKind(Function function) {
  cudaError_t error = function(GridKind<GridAny>());
  const auto next = [&](auto kind) {
    if (error == cudaSuccess) error = function(kind);
  };
  next(GridKind<GridChannels<T, Activation::kNone>>());
  next(GridKind<GridChannels<T, Activation::kSilu>>());
  next(GridKind<GridElements<T, T>>());
  if constexpr (sizeof(T) == 2) next(GridKind<GridElements<T, float>>());
  return error;
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_GRID_PARAMS_CUH_
