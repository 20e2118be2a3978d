// The kernels of register_rows.cu: the kinds they are compiled for, and the places of their rows.

#ifndef NORMD_KERNELS_CUDA_STAGES_REGISTER_KIND_CUH_
#define NORMD_KERNELS_CUDA_STAGES_REGISTER_KIND_CUH_

#include "kernels/cuda/stages/stage_sums.cuh"

namespace normd::norm::cuda {

// How a kernel gets factors and offsets. kNone: there are none. kLoaded: loads them with each row.
// kDirect and kAhead: the same for one array and perhaps another of x's type (the sample's scale
// and shift, or gamma and beta), after the statistics or ahead of them (IsSmall). kTable: in shared
// memory, if the rows of a block share them.
enum class RegisterFactors { kNone, kLoaded, kDirect, kAhead, kTable };

// The tensors and parameters that make the values to be normalized. kOther is the exception: the
// second tensor is combined with the results.
enum class RegisterInput {
  kAlone,            // x
  kBias,             // x + input_bias
  kResidual,         // x, perhaps times a gate, + residual
  kBiasAndResidual,  // (x + input_bias), perhaps times a gate, + residual
  kCombined,         // x and the second tensor, by combine_input; not rounded
  kOther,            // x
};

// The abilities of a kernel beyond a norm with gamma and beta, fixed at compile time so that the
// common cases are short: at run time a row may need less.
template <typename T, int kVectorsHeld, RegisterInput kInput, bool kModulatedBy, bool kQuantizedTo,
          RegisterFactors kFactors = RegisterFactors::kLoaded, bool kSquaresOf = false>
struct RegisterKind {
  using Type = T;
  static constexpr int kVectors = kVectorsHeld;  // Per thread.
  static constexpr bool kAffine = kFactors != RegisterFactors::kNone;
  static constexpr bool kTable = kFactors == RegisterFactors::kTable;
  static constexpr bool kAhead = kFactors == RegisterFactors::kAhead;
  static constexpr bool kDirect = kFactors == RegisterFactors::kDirect || kAhead;
  // Whether there is no branch between the vectors of a row, so that their instructions interleave.
  static constexpr bool kStraight = kTable || kDirect;
  static constexpr bool kBoth = kInput == RegisterInput::kBiasAndResidual;
  static constexpr bool kBias = kBoth || kInput == RegisterInput::kBias;
  // Whether the bias has x's type, and is loaded together with it.
  static constexpr bool kDirectBias = kDirect && kInput == RegisterInput::kBias;
  static constexpr bool kResidual = kBoth || kInput == RegisterInput::kResidual;
  static constexpr bool kCombined = kInput == RegisterInput::kCombined;
  static constexpr bool kOther = kInput == RegisterInput::kOther;
  static constexpr bool kSecond = kResidual || kCombined || kOther;
  static constexpr bool kModulated = kModulatedBy;  // By scale, shift and gate.
  static constexpr bool kQuantized = kQuantizedTo;
  // Whether statistics are of squares. If not, with kStraight, they are of mean and variance.
  static constexpr bool kSquares = kSquaresOf;
  // Whether statistics may be of absolutes; results may then still have x's type.
  static constexpr bool kAbsolutes = kModulated && !kStraight;
  // Whether all results are in registers at once. If not, results with a scale of their own are
  // computed twice.
  static constexpr bool kHeld = kQuantized && !(kModulated && kSecond);
  // Vectors whose results are computed together. All at once take fewer moves, two take less code.
  static constexpr int kStep = kModulated && kQuantized ? 2 : kVectors;
};

// Blocks of rows that share a table have several teams.
template <typename Kind>
using RegisterTeam = StageTeam<Kind::kTable>;

// The place of a row. Addresses are those of the thread's first vector.
struct RegisterPlace {
  const char* x;
  char* y;
  const char* second;
  char* sum;
  // Bytes before the thread's first channel in the sample's per-channel arrays; with kDirect and
  // without kModulated, in gamma and beta.
  std::int64_t of_channels;
  int first_channel;  // The channel of the thread's first vector, in the first group's arrays.
  int segment;
  std::uint32_t local;  // Row of the segment.
};

// Row `local` of a segment.
template <typename Kind>
__device__ inline RegisterPlace PlaceRegisterRow(const StageBatch& batch,
                                                 const RegisterTeam<Kind>& team, int segment_index,
                                                 std::uint32_t local) {
  using T = typename Kind::Type;
  RegisterPlace place = {};
  place.segment = segment_index;
  place.local = local;
  const StageSegment& segment = batch.segments[segment_index];
  const std::int64_t offset =
      static_cast<std::int64_t>(local) * segment.row_bytes + team.thread * kVectorBytes;
  place.x = segment.x + offset;
  place.y = segment.y + (Kind::kQuantized && batch.quantization != Quantization::kNone
                             ? offset / static_cast<int>(sizeof(T))
                             : offset);
  if constexpr (Kind::kSecond) {
    place.second = (Kind::kResidual ? segment.residual : segment.other) + offset;
  }
  if constexpr (Kind::kBias || Kind::kResidual) place.sum = segment.residual_out + offset;
  place.first_channel = team.thread * kPerVector<T>;
  const std::uint32_t groups = batch.groups.value();
  if (Kind::kModulated || groups != 1 || batch.has_gaps) {
    const std::uint32_t outer = batch.groups.Divide(local);
    const std::uint32_t group = local - outer * groups;
    std::uint32_t sample = outer;
    if (batch.positions_outside) sample = segment.positions.Divide(outer);
    place.first_channel += static_cast<int>(group * batch.channels_per_group);
    if (batch.has_gaps) {
      place.x += sample * batch.x_gap;
      place.y += sample * batch.y_gap;
    }
    if constexpr (Kind::kModulated) {
      place.of_channels =
          (sample * batch.channels + place.first_channel) * static_cast<int>(sizeof(T));
    }
  }
  if constexpr (Kind::kDirect && !Kind::kModulated) {
    place.of_channels = place.first_channel * static_cast<int>(sizeof(T));
  }
  return place;
}

// Rows of a segment that the teams of a block take in turn.
struct RegisterRun {
  int segment = 0;
  std::uint32_t first = 0;   // In the segment.
  std::uint32_t shared = 0;  // Which rows of shared factors they are.
  int rows = 0;
};

// A row for each team, from row `index` of the launch on.
__device__ inline RegisterRun FindRegisterRow(const StageBatch& batch, std::uint32_t index) {
  RegisterRun run;
  run.first = index;
  run.rows = 1;
  if (batch.segment_count > 1) {
    while (index >= batch.segments[run.segment].end_row) ++run.segment;
    if (run.segment > 0) run.first -= batch.segments[run.segment - 1].end_row;
  }
  return run;
}

// Run `index` of the launch.
__device__ inline RegisterRun FindRegisterRun(const StageBatch& batch, std::uint32_t index) {
  RegisterRun run;
  while (index >= batch.segments[run.segment].end_run) ++run.segment;
  const StageSegment& segment = batch.segments[run.segment];
  if (run.segment > 0) index -= batch.segments[run.segment - 1].end_run;
  run.shared = segment.runs.Divide(index);
  const std::uint32_t begin = (index - run.shared * segment.runs.value()) * batch.run_rows;
  run.first = run.shared * segment.shared_rows + begin;
  run.rows = min(batch.run_rows, static_cast<int>(segment.shared_rows - begin));
  return run;
}

// The row's number among the segment's in the order of the contract.
__device__ inline std::int64_t NumberOf(const StageBatch& batch, const RegisterPlace& place) {
  const std::uint32_t groups = batch.groups.value();
  if (!batch.positions_outside || groups == 1) return place.local;
  const Divisor positions = batch.segments[place.segment].positions;
  const std::uint32_t outer = batch.groups.Divide(place.local);
  const std::uint32_t group = place.local - outer * groups;
  const std::uint32_t sample = positions.Divide(outer);
  const std::uint32_t position = outer - sample * positions.value();
  return (std::int64_t{sample} * groups + group) * positions.value() + position;
}

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_STAGES_REGISTER_KIND_CUH_
