#include "server/model/version_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/printable.h"
#include "google/protobuf/util/message_differencer.h"
#include "operations/field_checks.h"

namespace normd {
namespace {

constexpr std::uint64_t kWhole = 1'000'000;
constexpr double kMillionthsOfAPercent = 10'000;
constexpr std::size_t kMaxAliasBytes = 64;

absl::Status CheckVersionNumber(absl::string_view field, std::int64_t version) {
  if (version >= 1) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(version), "a version from 1 on");
}

absl::Status CheckPolicy(const v1::VersionPolicy& policy) {
  switch (policy.policy_choice_case()) {
    case v1::VersionPolicy::kAll: return absl::OkStatus();
    case v1::VersionPolicy::kLatest:
      if (policy.latest().num_versions() >= 1) return absl::OkStatus();
      return InvalidField("version_policy.latest.num_versions",
                          absl::StrCat(policy.latest().num_versions()), "at least 1");
    case v1::VersionPolicy::kSpecific: break;
    case v1::VersionPolicy::POLICY_CHOICE_NOT_SET:
      return InvalidField("version_policy", "empty", "latest, all or specific");
  }
  const auto& versions = policy.specific().versions();
  if (versions.empty()) {
    return InvalidField("version_policy.specific.versions", "empty", "at least one version");
  }
  std::set<std::int64_t> seen;
  for (int i = 0; i < versions.size(); ++i) {
    const std::string field = absl::StrCat("version_policy.specific.versions[", i, "]");
    if (absl::Status status = CheckVersionNumber(field, versions[i]); !status.ok()) return status;
    if (!seen.insert(versions[i]).second) {
      return InvalidField(field, absl::StrCat(versions[i]), "each version once");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCanary(const v1::Canary& canary) {
  absl::Status status = CheckVersionNumber("canary.version", canary.version());
  if (!status.ok()) return status;
  // A share that rounds to nothing would never be seen.
  if (canary.percent() * kMillionthsOfAPercent >= 1 && canary.percent() <= 100) return status;
  return InvalidField("canary.percent", absl::StrCat(canary.percent()), "0.0001 to 100");
}

absl::Status CheckAliases(const v1::ModelConfig& config) {
  std::set<std::string> seen;
  for (int i = 0; i < config.version_alias_size(); ++i) {
    const v1::VersionAlias& alias = config.version_alias(i);
    const std::string field = absl::StrCat("version_alias[", i, "].name");
    const std::string got = absl::StrCat("\"", Printable(alias.name(), 32), "\"");
    if (!IsVersionAlias(alias.name())) {
      return InvalidField(field, got,
                          "1 to 64 letters, digits, '_', '-' and '.', beginning with a letter");
    }
    if (!seen.insert(alias.name()).second) return InvalidField(field, got, "each name once");
    absl::Status status =
        CheckVersionNumber(absl::StrCat("version_alias[", i, "].version"), alias.version());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Those that a plan wants whatever its policy.
std::set<std::int64_t> NamedVersions(const VersionPlan& plan) {
  std::set<std::int64_t> named;
  if (plan.canary != 0) named.insert(plan.canary);
  for (const auto& [name, version] : plan.aliases) named.insert(version);
  if (plan.is_list) named.insert(plan.listed.begin(), plan.listed.end());
  return named;
}

}  // namespace

bool IsVersionAlias(absl::string_view name) {
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= kMaxAliasBytes && absl::ascii_isalpha(name.front()) &&
         std::all_of(name.begin(), name.end(), allowed);
}

absl::Status CheckVersionFields(const v1::ModelConfig& config) {
  absl::Status status;
  if (config.has_version_policy()) status = CheckPolicy(config.version_policy());
  if (status.ok() && config.has_canary()) status = CheckCanary(config.canary());
  return status.ok() ? CheckAliases(config) : status;
}

bool DifferInVersionsAlone(const v1::ModelConfig& a, const v1::ModelConfig& b) {
  const auto without_versions = [](v1::ModelConfig config) {
    config.clear_version_policy();
    config.clear_canary();
    config.clear_version_alias();
    return config;
  };
  return google::protobuf::util::MessageDifferencer::Equals(without_versions(a),
                                                            without_versions(b));
}

VersionPlan PlanOf(const v1::ModelConfig& config) {
  VersionPlan plan;
  const v1::VersionPolicy& policy = config.version_policy();
  if (policy.has_latest()) plan.latest = static_cast<std::size_t>(policy.latest().num_versions());
  if (policy.has_all()) plan.latest = std::numeric_limits<std::size_t>::max();
  if (policy.has_specific()) {
    plan.is_list = true;
    plan.listed.assign(policy.specific().versions().begin(), policy.specific().versions().end());
  }
  if (config.has_canary()) {
    plan.canary = config.canary().version();
    plan.canary_millionths =
        static_cast<std::uint64_t>(std::llround(config.canary().percent() * kMillionthsOfAPercent));
  }
  for (const v1::VersionAlias& alias : config.version_alias()) {
    plan.aliases.emplace_back(alias.name(), alias.version());
  }
  std::sort(plan.aliases.begin(), plan.aliases.end());
  return plan;
}

VersionChoice ChooseVersions(const VersionPlan& plan, absl::Span<const std::int64_t> present,
                             absl::FunctionRef<VersionOutcome(std::int64_t version)> load) {
  const std::set<std::int64_t> named = NamedVersions(plan);
  std::set<std::int64_t> held;
  std::size_t counted = 0;  // Towards the policy's number.
  bool all_named_serve = true;
  bool any_serves = false;  // But the canary.
  bool canary_serves = false;
  bool unsettled = false;
  for (auto version = present.rbegin(); version != present.rend(); ++version) {
    const bool is_named = named.count(*version) != 0;
    const bool counts = !plan.is_list && *version != plan.canary;
    if (!is_named && !(counts && counted < plan.latest)) continue;
    const VersionOutcome outcome = load(*version);
    held.insert(*version);
    unsettled |= outcome == VersionOutcome::kUnsettled;
    if (outcome == VersionOutcome::kFails || outcome == VersionOutcome::kUnsettled) {
      all_named_serve &= !is_named;
      continue;
    }
    if (counts) ++counted;
    if (outcome == VersionOutcome::kServes) {
      (*version == plan.canary ? canary_serves : any_serves) = true;
    }
  }
  VersionChoice choice;
  choice.held.assign(held.begin(), held.end());
  choice.may_retire = any_serves && (all_named_serve || !plan.is_list);
  choice.may_vanish = any_serves || (canary_serves && !unsettled);
  return choice;
}

std::vector<std::int64_t> WantedVersions(const VersionPlan& plan,
                                         absl::Span<const std::int64_t> present) {
  return ChooseVersions(plan, present, [](std::int64_t) { return VersionOutcome::kServes; }).held;
}

absl::Status NoVersionWanted(const VersionPlan& plan, absl::Span<const std::int64_t> present) {
  return absl::NotFoundError(
      absl::StrCat("none of version_policy.specific.versions, ", absl::StrJoin(plan.listed, ", "),
                   ", is in the repository, which holds versions ", absl::StrJoin(present, ", ")));
}

bool GoesToCanary(std::uint64_t count, std::uint64_t millionths) {
  const std::uint64_t place = count % kWhole;
  return (place + 1) * millionths / kWhole != place * millionths / kWhole;
}

}  // namespace normd
