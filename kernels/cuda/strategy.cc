#include "kernels/cuda/strategy.h"

#include <array>
#include <utility>

namespace normd::norm::cuda {
namespace {

constexpr std::array<std::pair<Strategy, const char*>, 9> kNames = {{
    {Strategy::kAuto, "auto"},
    {Strategy::kWarp, "warp"},
    {Strategy::kBlock, "block"},
    {Strategy::kCluster, "cluster"},
    {Strategy::kGrid, "grid"},
    {Strategy::kSplit, "split"},
    {Strategy::kChannelsLast, "channels_last"},
    {Strategy::kElementwise, "elementwise"},
    {Strategy::kStages, "stages"},
}};

}  // namespace

const char* Name(Strategy strategy) {
  for (const auto& [value, name] : kNames) {
    if (value == strategy) return name;
  }
  return "invalid";
}

Status ParseStrategy(const std::string& name, Strategy* strategy) {
  std::string known;
  for (const auto& [value, text] : kNames) {
    if (name == text) {
      *strategy = value;
      return Status();
    }
    known += known.empty() ? text : std::string(", ") + text;
  }
  return InvalidArgument("strategy: '" + name + "' is not one of " + known);
}

std::string Describe(const Plan& plan) {
  std::string text = Name(plan.strategy);
  const auto number = [](auto value) { return std::to_string(value); };
  switch (plan.strategy) {
    case Strategy::kWarp:
      return text + ": " + number(plan.lanes_per_row) + " lanes x " + number(plan.vectors) +
             " vectors";
    case Strategy::kBlock:
      return text + ": " + number(plan.warps) + " warps x " + number(plan.vectors) + " vectors";
    case Strategy::kCluster:
    case Strategy::kGrid:
      return text + ": " + number(plan.blocks_per_row) + " blocks x " + number(plan.warps) +
             " warps x " + number(plan.vectors) + " vectors";
    case Strategy::kChannelsLast:
      return text + ": strips, " + Name(plan.strips) +
             (plan.strips == Strategy::kSplit ? ""
                                              : " of " + number(plan.blocks_per_row) + " blocks");
    case Strategy::kStages: {
      constexpr const char* kPlaces[] = {"", ", positions", ", channels last", ", mixed runs"};
      if (plan.slabs > 0) return text + ": positions in " + number(plan.slabs) + " slabs";
      text += plan.warps == 0 ? ": " + number(plan.lanes_per_row) + " lanes"
                              : ": " + number(plan.warps) + " warps";
      if (plan.blocks_per_row > 1) text += " of " + number(plan.blocks_per_row) + " blocks";
      return text + " x " + number(plan.vectors) + " vectors" +
             kPlaces[static_cast<int>(plan.places)];
    }
    default: return text;
  }
}

}  // namespace normd::norm::cuda
