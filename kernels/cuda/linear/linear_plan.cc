#include "kernels/cuda/linear/linear_plan.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace normd::norm::cuda {
namespace {

constexpr int kTensorCapability = 90;  // No other device has its matrix instructions.
constexpr std::size_t kAlignment = 256;
// Truncation grows with the number of additions to one sum on the tensor cores; the cost of moving
// the sum falls with it: kernels/cuda/README.md.
constexpr int kStepsPerSum = 2;
constexpr int kSplitColumns = 128;  // The maximum; two sets of sums leave no registers for more.
constexpr int kColumns = 256;       // The maximum.
constexpr int kFewestColumns = 32;
constexpr std::int64_t kFewSamples = 64;  // For the plain path.

struct TileName {
  LinearTile tile;
  const char* name;
  int columns;  // 0: the most.
};
constexpr TileName kTileNames[] = {
    {LinearTile::kNarrow32, "narrow32", 32},
    {LinearTile::kNarrow64, "narrow64", 64},
    {LinearTile::kNarrow128, "narrow128", 128},
    {LinearTile::kNarrow256, "narrow256", 256},
    {LinearTile::kWide, "wide", 0},
};

constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t RoundUp(std::int64_t a, std::int64_t b) { return CeilDiv(a, b) * b; }

bool UsesTensorCores(const LinearNormSpec& spec, const DeviceLimits& limits) {
  return limits.compute_capability == kTensorCapability &&
         spec.precision != Precision::kFloat32Strict;
}

// The tile of 64 features and `columns` samples.
LinearTile NarrowTile(int columns) {
  for (const TileName& known : kTileNames) {
    if (known.columns == columns) return known.tile;
  }
  return LinearTile::kWide;
}

// The fewest columns for which every tile of 64 features has a multiprocessor at once. If there are
// none, tiles of 128 features move fewer bytes, unless the samples leave half of their columns
// empty.
LinearTile ChooseTile(const LinearNormSpec& spec, const DeviceLimits& limits, std::int64_t samples,
                      int most_columns) {
  const std::int64_t blocks = CeilDiv(spec.out_features, kWeightBlockRows);
  for (int columns = kFewestColumns; columns <= most_columns; columns *= 2) {
    if (blocks * CeilDiv(samples, columns) <= limits.multiprocessors) return NarrowTile(columns);
  }
  for (int columns = kFewestColumns; columns < most_columns; columns *= 2) {
    if (samples <= columns) return NarrowTile(columns);
  }
  return LinearTile::kWide;
}

LinearPlan TensorPlan(const LinearNormSpec& spec) {
  LinearPlan plan;
  plan.path = LinearPath::kTensor;
  plan.format = spec.precision == Precision::kBFloat16 ? OperandFormat::kBFloat16
                                                       : OperandFormat::kSplitFloat16;
  plan.reads_x =
      spec.dtype == (spec.precision == Precision::kBFloat16 ? DType::kBFloat16 : DType::kFloat16);
  plan.tile_samples = kColumns;
  if (spec.precision == Precision::kFloat32) {
    // Two float16 hold 22 bits; a value of 16 bits needs one.
    plan.x_parts = spec.dtype == DType::kFloat32 ? 2 : 1;
    plan.weight_parts = 2;
    plan.steps_per_sum = kStepsPerSum;
    plan.tile_samples = kSplitColumns;
  }
  return plan;
}

LinearPlan PlainPlan(const LinearNormSpec& spec) {
  LinearPlan plan;
  plan.path = LinearPath::kPlain;
  plan.format = spec.precision == Precision::kTf32       ? OperandFormat::kRoundedTf32
                : spec.precision == Precision::kBFloat16 ? OperandFormat::kRoundedBFloat16
                                                         : OperandFormat::kFloat32;
  return plan;
}

const char* Name(OperandFormat format) {
  switch (format) {
    case OperandFormat::kSplitFloat16: return "float16";
    case OperandFormat::kBFloat16: return "bfloat16";
    case OperandFormat::kFloat32: return "float32";
    case OperandFormat::kRoundedTf32: return "float32 of 10 bits";
    case OperandFormat::kRoundedBFloat16: return "float32 of 7 bits";
  }
  return "invalid";
}

std::size_t ElementBytes(LinearPath path) { return path == LinearPath::kTensor ? 2 : 4; }

// Appends a part to a layout that has `bytes` bytes so far, and returns its place.
std::size_t Place(std::size_t part_bytes, std::size_t* bytes) {
  const std::size_t begin = *bytes;
  *bytes += (part_bytes + kAlignment - 1) / kAlignment * kAlignment;
  return begin;
}

}  // namespace

const char* Name(LinearTile tile) {
  if (tile == LinearTile::kAuto) return "auto";
  for (const TileName& known : kTileNames) {
    if (known.tile == tile) return known.name;
  }
  return "invalid";
}

Status ParseLinearTile(const std::string& name, LinearTile* tile) {
  std::string names;
  for (LinearTile known : kLinearTiles) {
    names += names.empty() ? Name(known) : std::string(", ") + Name(known);
    if (name != Name(known)) continue;
    *tile = known;
    return Status();
  }
  return InvalidArgument("tile: '" + name + "' is not one of " + names);
}

LinearPlan MakeLinearPlan(const LinearNormSpec& spec, const DeviceLimits& limits,
                          std::int64_t samples, LinearTile forced) {
  if (!UsesTensorCores(spec, limits)) {
    LinearPlan plan = PlainPlan(spec);
    const bool narrow =
        forced == LinearTile::kAuto ? samples <= kFewSamples : forced != LinearTile::kWide;
    plan.tile_samples = narrow ? 16 : 128;
    plan.tile_features = narrow ? 64 : 128;
    return plan;
  }
  LinearPlan plan = TensorPlan(spec);
  if (forced == LinearTile::kAuto) forced = ChooseTile(spec, limits, samples, plan.tile_samples);
  for (const TileName& known : kTileNames) {
    if (known.tile == forced && known.columns > 0) {
      plan.tile_samples = std::min(plan.tile_samples, known.columns);
    }
  }
  plan.cluster = forced == LinearTile::kWide ? 2 : 1;
  plan.tile_features = plan.cluster * kWeightBlockRows;
  return plan;
}

std::string Describe(const LinearPlan& plan) {
  std::ostringstream text;
  text << (plan.path == LinearPath::kTensor ? "tensor: " : "plain: ") << Name(plan.format);
  if (plan.path == LinearPath::kTensor) {
    text << " " << plan.x_parts << " x " << plan.weight_parts << " parts";
  }
  text << ", " << plan.tile_features << " features x " << plan.tile_samples << " samples";
  if (plan.cluster > 1) text << ", clusters of " << plan.cluster;
  if (plan.steps_per_sum > 0) text << ", sums of " << plan.steps_per_sum * kStepElements;
  return text.str();
}

WeightLayout MakeWeightLayout(const LinearNormSpec& spec, const DeviceLimits& limits) {
  const LinearPlan plan = MakeLinearPlan(spec, limits, 1);
  WeightLayout layout;
  layout.rows = RoundUp(spec.out_features, kMaxFeaturesPerCluster);
  layout.k = RoundUp(spec.in_features, kStepElements);
  const auto rows = static_cast<std::size_t>(layout.rows);
  layout.bias = Place(rows * sizeof(float), &layout.bytes);
  layout.exponents = Place(rows * sizeof(int), &layout.bytes);
  layout.weight =
      Place(rows * static_cast<std::size_t>(layout.k * plan.weight_parts) * ElementBytes(plan.path),
            &layout.bytes);
  return layout;
}

WorkspaceLayout MakeWorkspaceLayout(const LinearNormSpec& spec, const LinearPlan& plan,
                                    std::int64_t samples) {
  WorkspaceLayout layout;
  layout.rows = RoundUp(samples, plan.tile_samples);
  layout.z_pitch = RoundUp(spec.out_features, 4);
  const auto rows = static_cast<std::size_t>(layout.rows);
  const std::int64_t k = RoundUp(spec.in_features, kStepElements) * plan.x_parts;
  layout.exponents = Place(rows * sizeof(int), &layout.bytes);
  layout.x = Place(rows * static_cast<std::size_t>(k) * ElementBytes(plan.path), &layout.bytes);
  layout.z =
      Place(static_cast<std::size_t>(samples * layout.z_pitch) * sizeof(float), &layout.bytes);
  return layout;
}

}  // namespace normd::norm::cuda
