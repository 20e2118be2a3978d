// Which versions of a model are loaded, and which of them takes a request that names none, as its
// config has it. Pure.

#ifndef NORMD_SERVER_MODEL_VERSION_PLAN_H_
#define NORMD_SERVER_MODEL_VERSION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "normd/v1/model_config.pb.h"

namespace normd {

// InvalidArgument names the first of version_policy, canary and version_alias that is wrong, what
// it holds and what was wanted.
absl::Status CheckVersionFields(const v1::ModelConfig& config);

// Whether nothing but version_policy, canary and version_alias differs between the two.
bool DifferInVersionsAlone(const v1::ModelConfig& a, const v1::ModelConfig& b);

// Whether a version_alias may have this name: never that of a number, or of a path.
bool IsVersionAlias(absl::string_view name);

// The plan of a config that CheckVersionFields accepts.
struct VersionPlan {
  bool is_list = false;                 // version_policy { specific }
  std::vector<std::int64_t> listed;     // Its versions.
  std::size_t latest = 1;               // Without a list: how many of the highest.
  std::int64_t canary = 0;              // 0: none.
  std::uint64_t canary_millionths = 0;  // Its share.
  std::vector<std::pair<std::string, std::int64_t>> aliases;  // By name.
};
VersionPlan PlanOf(const v1::ModelConfig& config);

enum class VersionOutcome {
  kServes,
  kUnloaded,   // It did, and a client has unloaded it: it keeps its place.
  kFails,      // Its files cannot be loaded.
  kUnsettled,  // Its files have changed too lately to be judged.
};

struct VersionChoice {
  std::vector<std::int64_t> held;  // Ascending: those that the plan wants, or that it has tried.
  bool may_retire = true;          // Whether others, which the repository still holds, may go.
  bool may_vanish = true;          // Whether those that it no longer holds and that serve may go.
};

// Goes through the versions that the repository holds, `present`, ascending, and calls `load` once
// for each that `plan` wants. A version that fails leaves its place to the next lower one, where
// the plan names none; where it does, no other is retired until all that it names serve.
//
// Nothing that serves may go unless one of the held versions serves. So neither a broken version
// nor a missing one takes the last that serves away.
VersionChoice ChooseVersions(const VersionPlan& plan, absl::Span<const std::int64_t> present,
                             absl::FunctionRef<VersionOutcome(std::int64_t version)> load);

// Those that `plan` wants of `present` when all of them serve; ascending.
std::vector<std::int64_t> WantedVersions(const VersionPlan& plan,
                                         absl::Span<const std::int64_t> present);

// NotFound, with what `plan` wants and what the repository holds, `present`: for a plan that wants
// none of it.
absl::Status NoVersionWanted(const VersionPlan& plan, absl::Span<const std::int64_t> present);

// Whether the request that is the `count`th without a version, from 0, goes to a canary that takes
// this share. Any 1,000,000 of them one after the other have the share exactly, and any n of them
// differ from it by less than one request.
bool GoesToCanary(std::uint64_t count, std::uint64_t millionths);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_VERSION_PLAN_H_
