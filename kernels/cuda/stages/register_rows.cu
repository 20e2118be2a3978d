// Contiguous rows in registers: input biases, residual additions, modulations by sample and
// channel, second tensors and quantized results of rows up to 64 KiB, with one channel per element,
// a norm alone or its statistics.
//
// Phases: every thread loads its vectors of x and of a residual or second tensor; adds, rounds and
// writes residual_out, or combines the two, which rounds nothing; the team merges its sums; every
// thread scales its vectors and stores them. If a row has a scale of its own, the results stay in
// registers, or, if a second tensor leaves no room, are computed twice: for the largest, and to be
// stored. If many rows of x alone, not quantized, share factors, a block computes each channel's
// factor and offset once into shared memory, and its teams take a run of the rows in turn.
// Bytes: each element of each tensor is read once and written once; per-channel values come from
// the L1 cache or shared memory.
// Occupancy: with a second tensor or input bias 64 registers, up to 128 KiB on a multiprocessor;
// quantized 64 registers, 64 KiB; other rows up to 128 registers, 64 KiB; rows up to 2 KiB take 40
// to 64 registers. Small launches with a residual take up to 128. Determinism: the order of
// general_rows.cu.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/dependent_launch.cuh"
#include "kernels/cuda/rows/vector_tile.cuh"
#include "kernels/cuda/stages/register_row.cuh"
#include "kernels/cuda/stages/stage_launch.cuh"

namespace normd::norm::cuda {
namespace {

// For the longest rows, 64 KiB.
constexpr int kMostThreadsOfTwo = kStageWarps * kLanes;
constexpr int kMostThreadsOfOne = kMostThreadsOfTwo * kFewVectors / kManyVectors;
constexpr int kMostThreadsAhead = 512;
constexpr int kMostRunRows = 32;
constexpr int kMostRowsOfOneWave = 64;
// Dynamic shared memory that a kernel may use without opting in, beside its static memory.
constexpr std::size_t kUnaskedBytes = 40 << 10;

// Whether a kernel of rows of one tensor and an input bias is for shorter ones, with more threads
// on a multiprocessor: else too few bytes are in flight. 16-bit rows need more registers.
template <typename Kind>
constexpr bool kManyThreads =
    Kind::kBias && !Kind::kSecond && !Kind::kModulated && !Kind::kDirectBias;
template <typename Kind>
constexpr int kMostOfMany = sizeof(typename Kind::Type) == 2 ? 384 : 512;

template <typename Kind>
constexpr int MostThreads() {
  return Kind::kAhead                                       ? kMostThreadsAhead
         : kManyThreads<Kind>                               ? kMostOfMany<Kind>
         : Kind::kVectors > kFewVectors                     ? kMostThreadsOfOne
         : Kind::kSecond || Kind::kBias || Kind::kQuantized ? kMostThreadsOfTwo
                                                            : kTeamThreads;
}

// Blocks of a multiprocessor for which the compiler reserves registers.
template <typename Kind>
constexpr int WantedBlocks() {
  if (kManyThreads<Kind>) return 3;
  if (MostThreads<Kind>() != kTeamThreads) return 1;
  if (Kind::kModulated) return 4;
  return Kind::kAffine ? 5 : 6;
}

// The same for the kernel of runs.
constexpr int kRunBlocks = 3;

// Computes the values that the rows of a run share. All threads of the block call it together.
template <typename Kind>
__device__ inline void FillTable(const StageBatch& batch, const RegisterRun& run, int vectors,
                                 RegisterTable<typename Kind::Type>* table) {
  constexpr int kCount = kPerVector<typename Kind::Type>;
  const StageSegment& segment = batch.segments[run.segment];
  const std::int64_t sample = run.shared * batch.channels * (kVectorBytes / kCount);
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  for (int vector = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); vector < vectors;
       vector += threads) {
    const std::int64_t bytes = sample + vector * kVectorBytes;
    float factor[kCount], offset[kCount];
    LoadFactors<Kind>(batch, vector * kCount, static_cast<const char*>(segment.scale) + bytes,
                      static_cast<const char*>(segment.shift) + bytes, factor, offset);
    table->Put(vector, factor, offset);
  }
  __syncthreads();
}

// From a loaded row to its results.
template <typename Kind>
__device__ inline void FinishRow(const StageBatch& batch, const RegisterTeam<Kind>& team,
                                 const RegisterPlace& place, RegisterRow<Kind>& held,
                                 WarpPartials<Moments<float>>& partials,
                                 WarpPartials<std::uint32_t>& largest) {
  const StageSegment& segment = batch.segments[place.segment];
  const Moments<float> all =
      MergeTeam(held.statistics(), held.Sum(), held.CountOfWarp(),
                static_cast<float>(static_cast<int>(segment.elements)), team, partials);
  const RowScale<float> scale = FinishStatistics(batch.statistics, all, batch.eps);
  held.RepackAll();
  if (team.thread == 0 && held.exists()) {
    auto* const mean_out = static_cast<float*>(segment.mean_out);
    auto* const rstd_out = static_cast<float*>(segment.rstd_out);
    if (mean_out != nullptr) mean_out[NumberOf(batch, place)] = scale.mean;
    if (rstd_out != nullptr) {
      rstd_out[NumberOf(batch, place)] =
          batch.deviations ? DeviationOf(all, batch.eps) : scale.rstd;
    }
  }
  if (batch.only_statistics) return;
  held.Write(scale, largest);
}

// A row for each team.
template <typename Kind>
__global__ void __launch_bounds__(MostThreads<Kind>(),
                                  MinBlocks(WantedBlocks<Kind>(), MostThreads<Kind>()))
    RegisterRows(const __grid_constant__ StageBatch batch, const int width, const int warps) {
  __shared__ WarpPartials<Moments<float>> partials;
  __shared__ WarpPartials<std::uint32_t> largest;
  const RegisterTeam<Kind> team(width, warps, Kind::kVectors);
  const std::uint32_t index =
      warps == 0 ? blockIdx.x * (kTeamThreads / width) + team.number : blockIdx.x;
  const bool exists = index < batch.rows;
  const RegisterRun row = FindRegisterRow(batch, exists ? index : batch.rows - 1);
  const RegisterPlace place = PlaceRegisterRow<Kind>(batch, team, row.segment, row.first);
  const int vectors = static_cast<int>(batch.segments[row.segment].row_bytes) / kVectorBytes;
  RegisterRow<Kind> held(batch, team, place, exists ? vectors : 0, nullptr);
  AwaitPreviousKernel();
  LetNextKernelBeginEarly<true>();
  held.Load();
  FinishRow(batch, team, place, held, partials, largest);
}

// Prefetches the row that the team takes next into the L2 cache, a line per thread.
template <typename Kind>
__device__ inline void PrefetchRow(const StageBatch& batch, const RegisterTeam<Kind>& team,
                                   const RegisterPlace& place, int segment, int teams) {
  constexpr int kLineBytes = 128;
  const std::int64_t row_bytes = batch.segments[segment].row_bytes;
  const std::int64_t first = teams * row_bytes - team.thread * kVectorBytes;
  for (int at = team.thread * kLineBytes; at < row_bytes; at += team.size() * kLineBytes) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(place.x + first + at));
  }
}

// A run of rows for each block, whose teams take them in turn.
template <typename Kind>
__global__ void __launch_bounds__(kTeamThreads, kRunBlocks)
    RegisterRuns(const __grid_constant__ StageBatch batch, const int width, const int warps) {
  extern __shared__ float4 table_memory[];
  __shared__ WarpPartials<Moments<float>> partials[2];
  __shared__ WarpPartials<std::uint32_t> largest;
  const RegisterTeam<Kind> team(width, warps, Kind::kVectors);
  const int teams = warps == 0 ? kTeamThreads / width : static_cast<int>(blockDim.y);
  const RegisterRun run = FindRegisterRun(batch, blockIdx.x);
  const int vectors = static_cast<int>(batch.segments[run.segment].row_bytes) / kVectorBytes;
  RegisterTable<typename Kind::Type> table(table_memory, vectors);
  AwaitPreviousKernel();
  // A warp stays together, and so do a team's warps.
  int turn = 0;
#pragma unroll 1
  for (int begin = 0; begin < run.rows; begin += teams, turn ^= 1) {
    const int row = begin + team.number;
    const bool exists = row < run.rows;
    if (begin > 0 && warps > 0 && !exists) break;
    const RegisterPlace place =
        PlaceRegisterRow<Kind>(batch, team, run.segment, run.first + (exists ? row : 0));
    RegisterRow<Kind> held(batch, team, place, exists ? vectors : 0, &table);
    held.Load();
    if (row + teams < run.rows && !batch.has_gaps)
      PrefetchRow<Kind>(batch, team, place, run.segment, teams);
    if (begin == 0) FillTable<Kind>(batch, run, vectors, &table);
    FinishRow(batch, team, place, held, partials[turn], largest);
  }
}

template <typename Kind>
cudaError_t EnqueueRows(const Launch& launch, const StageBatch& batch) {
  return LaunchTeams(launch, batch, RegisterRows<Kind>);
}

// The division of a launch's rows into runs.
struct RunCut {
  int teams = 1;
  int rows = 0;  // Per run; 0: none.
};

// The rows of a run, a multiple of `teams` from `fewest` on; `shared` rows have the same factors.
// The number leaves the fewest places empty in the last wave of the launch's blocks.
std::int64_t RowsOfRun(const StageBatch& batch, int teams, std::int64_t fewest, std::int64_t shared,
                       std::int64_t places) {
  // A later launch of the batch may have fewer rows than its first segment.
  if (batch.rows < shared) return 0;
  std::int64_t best = 0;
  double most_busy = 0;
  const std::int64_t most = std::min(std::max<std::int64_t>(fewest, kMostRowsOfOneWave), shared);
  for (std::int64_t rows = fewest; rows <= most; rows += teams) {
    const std::int64_t blocks = (shared + rows - 1) / rows * (batch.rows / shared);
    const std::int64_t waves = (blocks + places - 1) / places;
    const double busy =
        static_cast<double>(batch.rows) / static_cast<double>(waves * places * rows);
    if (busy < most_busy) continue;
    most_busy = busy;
    best = rows;
  }
  return best;
}

// Runs are worth their table if each team gets several rows and every multiprocessor several runs.
RunCut ChooseRuns(const Launch& launch, const StageBatch& batch, bool modulated) {
  const Plan& plan = launch.plan;
  const std::int64_t of_positions = batch.positions_outside ? launch.segments[0].spatial : 1;
  const int team_threads = plan.warps == 0 ? plan.lanes_per_row : plan.warps * kLanes;
  RunCut runs;
  if (!batch.affine || batch.channels_per_group != batch.channels || team_threads > kTeamThreads ||
      batch.statistics > Statistics::kRootOfSquares ||
      batch.statistics == Statistics::kSumOfAbsolutes) {
    return runs;
  }
  // Two blocks share a multiprocessor.
  const auto room = static_cast<std::int64_t>(launch.limits.shared_bytes_per_block / 2) -
                    static_cast<std::int64_t>(kReservedSharedBytes);
  if (static_cast<std::int64_t>(RegisterTable<float>::Bytes(batch.channels)) > room) return runs;
  runs.teams = kTeamThreads / team_threads;
  const std::int64_t shared = modulated ? of_positions : batch.rows;
  const std::int64_t fewest = 2 * runs.teams;
  const std::int64_t multiprocessors = launch.limits.multiprocessors;
  if (shared < fewest || batch.rows < fewest * 2 * multiprocessors) return runs;
  // Teams of several warps are faster in more and shorter runs.
  if (plan.warps == 0) {
    runs.rows = static_cast<int>(
        RowsOfRun(batch, runs.teams, fewest, shared, kRunBlocks * multiprocessors));
    return runs;
  }
  const std::int64_t wanted =
      std::max(fewest, std::min<std::int64_t>(batch.rows / (8 * multiprocessors), kMostRunRows));
  const std::int64_t rows = std::min(wanted, shared) / runs.teams * runs.teams;
  if (rows < fewest || batch.rows < rows * 2 * multiprocessors) return runs;
  runs.rows = static_cast<int>(rows);
  return runs;
}

template <typename Kind>
cudaError_t LaunchRuns(const Launch& launch, const RunCut& runs, StageBatch batch) {
  const Plan& plan = launch.plan;
  const int width = plan.warps == 0 ? plan.lanes_per_row : kLanes;
  LaunchShape shape;
  shape.threads = plan.warps == 0 ? dim3(kTeamThreads)
                                  : dim3(static_cast<unsigned>(plan.warps * kLanes),
                                         static_cast<unsigned>(runs.teams));
  shape.shared_bytes = RegisterTable<typename Kind::Type>::Bytes(batch.channels);
  if (shape.shared_bytes > kUnaskedBytes) {
    const cudaError_t error = AllowSharedBytes(RegisterRuns<Kind>, launch.limits);
    if (error != cudaSuccess) return error;
  }
  batch.run_rows = runs.rows;
  std::uint32_t before = 0;
  for (int i = 0; i < batch.segment_count; ++i) {
    StageSegment& segment = batch.segments[i];
    const std::uint32_t rows = segment.end_row - before;
    before = segment.end_row;
    const bool of_sample = Kind::kModulated && batch.positions_outside;
    segment.shared_rows = of_sample ? static_cast<std::uint32_t>(segment.spatial) : rows;
    const auto of_run = static_cast<std::uint32_t>(runs.rows);
    const std::uint32_t count = (segment.shared_rows + of_run - 1) / of_run;
    shape.blocks += rows / segment.shared_rows * count;
    segment.runs = Divisor(count);
    segment.end_run = shape.blocks;
  }
  return LaunchOverlapping(launch.limits, launch.stream, shape, RegisterRuns<Kind>, batch, width,
                           plan.warps);
}

// Whether rows can have kDirect: their only factors are gamma and perhaps beta
// of x's type or, with `of_sample`, the sample's scale and perhaps shift. The results may be
// quantized in any way.
bool IsDirect(const NormSpec& spec, const StageBatch& batch, bool of_sample) {
  if (spec.statistics == Statistics::kSumOfAbsolutes ||
      spec.statistics == Statistics::kLargestAbsolute) {
    return false;
  }
  const bool has_gamma = batch.gamma.data != nullptr;
  const bool has_beta = batch.beta.data != nullptr;
  if (of_sample) return spec.scale && !has_gamma && !has_beta;
  return !spec.scale && !spec.shift && !spec.gate && has_gamma && batch.gamma.dtype == spec.dtype &&
         (!has_beta || batch.beta.dtype == spec.dtype);
}

template <typename T, RegisterInput kInput, bool kOfSample, RegisterFactors kFactors,
          bool kQuantized = false>
cudaError_t EnqueueDirect(const Launch& launch, const StageBatch& batch) {
  using OfMean = RegisterKind<T, kFewVectors, kInput, kOfSample, kQuantized, kFactors>;
  using OfSquares = RegisterKind<T, kFewVectors, kInput, kOfSample, kQuantized, kFactors, true>;
  return launch.spec.statistics == Statistics::kMeanVariance
             ? EnqueueRows<OfMean>(launch, batch)
             : EnqueueRows<OfSquares>(launch, batch);
}

// Kinds without a second tensor whose results are quantized.
template <typename T>
cudaError_t EnqueueQuantized(const Launch& launch, const StageBatch& batch, bool modulated) {
  constexpr RegisterInput kAlone = RegisterInput::kAlone;
  constexpr RegisterFactors kDirect = RegisterFactors::kDirect;
  if (IsDirect(launch.spec, batch, true)) {
    return EnqueueDirect<T, kAlone, true, kDirect, true>(launch, batch);
  }
  if (IsDirect(launch.spec, batch, false)) {
    return EnqueueDirect<T, kAlone, false, kDirect, true>(launch, batch);
  }
  return modulated ? EnqueueRows<RegisterKind<T, kFewVectors, kAlone, true, true>>(launch, batch)
                   : EnqueueRows<RegisterKind<T, kFewVectors, kAlone, false, true>>(launch, batch);
}

// Kinds without a second tensor that write x's type.
template <typename T, int kVectors>
cudaError_t EnqueueOne(const Launch& launch, const StageBatch& batch, bool modulated) {
  constexpr RegisterInput kAlone = RegisterInput::kAlone;
  constexpr bool kMany = kVectors == kManyVectors;
  constexpr RegisterFactors kBare = kMany ? RegisterFactors::kLoaded : RegisterFactors::kNone;
  constexpr RegisterFactors kTable = RegisterFactors::kTable;
  const bool of_mean = launch.spec.statistics == Statistics::kMeanVariance;
  if constexpr (kMany) {
    const RunCut runs = ChooseRuns(launch, batch, modulated);
    if (runs.rows > 0) {
      return of_mean ? LaunchRuns<RegisterKind<T, kVectors, kAlone, true, false, kTable>>(
                           launch, runs, batch)
                     : LaunchRuns<RegisterKind<T, kVectors, kAlone, true, false, kTable, true>>(
                           launch, runs, batch);
    }
  }
  if (modulated) return EnqueueRows<RegisterKind<T, kVectors, kAlone, true, false>>(launch, batch);
  if (kMany || batch.affine) {
    return EnqueueRows<RegisterKind<T, kVectors, kAlone, false, false>>(launch, batch);
  }
  return of_mean
             ? EnqueueRows<RegisterKind<T, kVectors, kAlone, false, false, kBare>>(launch, batch)
             : EnqueueRows<RegisterKind<T, kVectors, kAlone, false, false, kBare, true>>(launch,
                                                                                         batch);
}

// Whether there are few enough rows for kAhead.
bool AsksAhead(const Launch& launch, const StageBatch& batch) {
  const int lanes = launch.plan.warps == 0 ? launch.plan.lanes_per_row : launch.plan.warps * kLanes;
  return lanes <= kMostThreadsAhead && IsSmall(launch, std::int64_t{batch.rows} * lanes / kLanes);
}

// Kinds with a residual and no input bias.
template <typename T>
cudaError_t EnqueueResidual(const Launch& launch, const StageBatch& batch, bool modulated) {
  constexpr RegisterInput kResidual = RegisterInput::kResidual;
  constexpr int kFew = kFewVectors;
  const bool quantized = launch.spec.quantization != Quantization::kNone;
  if (!quantized && IsDirect(launch.spec, batch, true)) {
    return EnqueueDirect<T, kResidual, true, RegisterFactors::kDirect>(launch, batch);
  }
  if (IsDirect(launch.spec, batch, false)) {
    constexpr RegisterFactors kAhead = RegisterFactors::kAhead;
    if (AsksAhead(launch, batch)) {
      return quantized ? EnqueueDirect<T, kResidual, false, kAhead, true>(launch, batch)
                       : EnqueueDirect<T, kResidual, false, kAhead>(launch, batch);
    }
    // For a mean of 16-bit rows the kind that loads parameters of any type is faster.
    constexpr RegisterFactors kDirect = RegisterFactors::kDirect;
    if (sizeof(T) == 2 && !quantized && launch.spec.statistics != Statistics::kMeanVariance) {
      return EnqueueRows<RegisterKind<T, kFew, kResidual, false, false, kDirect, true>>(launch,
                                                                                        batch);
    }
    if constexpr (sizeof(T) == 4) {
      if (!quantized) return EnqueueDirect<T, kResidual, false, kDirect>(launch, batch);
    }
  }
  if (!modulated) {
    return quantized ? EnqueueRows<RegisterKind<T, kFew, kResidual, false, true>>(launch, batch)
                     : EnqueueRows<RegisterKind<T, kFew, kResidual, false, false>>(launch, batch);
  }
  return quantized ? EnqueueRows<RegisterKind<T, kFew, kResidual, true, true>>(launch, batch)
                   : EnqueueRows<RegisterKind<T, kFew, kResidual, true, false>>(launch, batch);
}

// Kinds with another input: for gamma and beta alone, and for everything.
template <typename T, RegisterInput kInput>
cudaError_t EnqueueInput(const Launch& launch, const StageBatch& batch, bool modulated) {
  using Plain = RegisterKind<T, kFewVectors, kInput, false, false>;
  const bool quantized = launch.spec.quantization != Quantization::kNone;
  if constexpr (kInput == RegisterInput::kBias || (sizeof(T) == 2 && !Plain::kBias)) {
    // Packed parameters leave registers for a gate.
    const bool packed_bias = !Plain::kBias || batch.input_bias.dtype == launch.spec.dtype;
    if (!quantized && packed_bias && IsDirect(launch.spec, batch, false)) {
      return EnqueueDirect<T, kInput, false, RegisterFactors::kDirect>(launch, batch);
    }
  }
  if (!modulated && !quantized && launch.plan.warps * kLanes <= MostThreads<Plain>()) {
    return EnqueueRows<Plain>(launch, batch);
  }
  return EnqueueRows<RegisterKind<T, kFewVectors, kInput, true, true>>(launch, batch);
}

template <typename T>
cudaError_t Enqueue(const Launch& launch, const StageBatch& batch) {
  const NormSpec& spec = launch.spec;
  const bool absolutes = spec.statistics == Statistics::kSumOfAbsolutes ||
                         spec.statistics == Statistics::kLargestAbsolute;
  const bool modulated = spec.scale || spec.shift || spec.gate || absolutes;
  if (spec.combine_input != Combine::kNone) {
    return EnqueueInput<T, RegisterInput::kCombined>(launch, batch, modulated);
  }
  if (spec.combine_output != Combine::kNone) {
    return EnqueueInput<T, RegisterInput::kOther>(launch, batch, modulated);
  }
  if (batch.input_bias.data != nullptr) {
    return spec.residual
               ? EnqueueInput<T, RegisterInput::kBiasAndResidual>(launch, batch, modulated)
               : EnqueueInput<T, RegisterInput::kBias>(launch, batch, modulated);
  }
  if (spec.residual) return EnqueueResidual<T>(launch, batch, modulated);
  if (spec.quantization != Quantization::kNone) {
    return EnqueueQuantized<T>(launch, batch, modulated);
  }
  return launch.plan.vectors == kManyVectors ? EnqueueOne<T, kManyVectors>(launch, batch, modulated)
                                             : EnqueueOne<T, kFewVectors>(launch, batch, modulated);
}

}  // namespace

bool TakesRegisterRows(const Launch& launch, const StageBatch& batch) {
  const NormSpec& spec = launch.spec;
  const bool bias = batch.input_bias.data != nullptr;
  if (!batch.aligned || spec.dtype == DType::kFloat64 || spec.statistics == Statistics::kGiven ||
      spec.style != Style::kNone || spec.activation != Activation::kNone ||
      (spec.combine_output != Combine::kNone && (spec.residual || bias)) ||
      !IsPackedParam(batch, batch.gamma) || !IsPackedParam(batch, batch.beta) ||
      !IsPackedParam(batch, batch.input_bias)) {
    return false;
  }
  const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
  const bool two =
      spec.residual || bias || spec.takes_other() || spec.quantization != Quantization::kNone;
  const std::int64_t threads = launch.plan.vectors > kFewVectors ? kMostThreadsOfOne
                               : two                             ? kMostThreadsOfTwo
                                                                 : kTeamThreads;
  const std::int64_t most = threads * launch.plan.vectors * kVectorBytes / element;
  for (int i = 0; i < batch.segment_count; ++i) {
    const StageSegment& segment = batch.segments[i];
    const bool of_channels = batch.affine || batch.gate || bias;
    if (segment.elements > most || (of_channels && segment.channel_run != 1)) return false;
    for (const void* data : {segment.gate, segment.scale, segment.shift}) {
      if (data != nullptr && !IsAligned(data, batch.channels_per_group * element)) return false;
    }
  }
  return true;
}

cudaError_t LaunchRegisterRows(const Launch& launch, const StageBatch& batch) {
  return WithNarrowType(launch.spec.dtype, [&](auto element) {
    return Enqueue<typename decltype(element)::Type>(launch, batch);
  });
}

}  // namespace normd::norm::cuda
