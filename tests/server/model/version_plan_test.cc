// Which versions a config wants, and how a canary's share is dealt out.

#include "server/model/version_plan.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/model/config.h"

namespace normd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Versions = std::vector<std::int64_t>;

v1::ModelConfig Config(const std::string& fields) {
  absl::StatusOr<v1::ModelConfig> config =
      ParseModelConfig("rms_norm { normalized_shape: 4 } " + fields);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *std::move(config) : v1::ModelConfig();
}
VersionPlan Plan(const std::string& fields) { return PlanOf(Config(fields)); }

TEST(VersionPlanTest, WantsWhatThePolicySays) {
  const Versions present = {1, 2, 3, 5};
  EXPECT_THAT(WantedVersions(Plan(""), present), ElementsAre(5));
  EXPECT_THAT(WantedVersions(Plan("version_policy { latest { num_versions: 2 } }"), present),
              ElementsAre(3, 5));
  EXPECT_THAT(WantedVersions(Plan("version_policy { latest { num_versions: 9 } }"), present),
              ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(WantedVersions(Plan("version_policy { all {} }"), present), ElementsAre(1, 2, 3, 5));
  EXPECT_THAT(WantedVersions(Plan("version_policy { specific { versions: [5, 1, 4] } }"), present),
              ElementsAre(1, 5));
  EXPECT_THAT(WantedVersions(Plan("version_policy { specific { versions: 4 } }"), present),
              IsEmpty());
}

TEST(VersionPlanTest, ACanaryAndAliasesComeBesideThePolicys) {
  const Versions present = {1, 2, 3, 4};
  EXPECT_THAT(WantedVersions(Plan("canary { version: 4 percent: 5 }"), present), ElementsAre(3, 4));
  EXPECT_THAT(WantedVersions(Plan("canary { version: 7 percent: 5 }"), present), ElementsAre(4));
  EXPECT_THAT(WantedVersions(Plan("version_alias { name: \"old\" version: 1 }"), present),
              ElementsAre(1, 4));
  // An alias of the highest takes no second place.
  EXPECT_THAT(WantedVersions(Plan("version_alias { name: \"new\" version: 4 }"), present),
              ElementsAre(4));
}

TEST(VersionPlanTest, RefusesWrongFields) {
  const std::pair<const char*, const char*> cases[] = {
      {"version_policy {}", "version_policy: empty, wanted latest, all or specific"},
      {"version_policy { latest {} }", "version_policy.latest.num_versions: 0, wanted at least 1"},
      {"version_policy { latest { num_versions: -1 } }",
       "version_policy.latest.num_versions: -1, wanted at least 1"},
      {"version_policy { specific {} }",
       "version_policy.specific.versions: empty, wanted at least one version"},
      {"version_policy { specific { versions: [1, 0] } }",
       "version_policy.specific.versions[1]: 0, wanted a version from 1 on"},
      {"version_policy { specific { versions: [2, 1, 2] } }",
       "version_policy.specific.versions[2]: 2, wanted each version once"},
      {"canary { percent: 5 }", "canary.version: 0, wanted a version from 1 on"},
      {"canary { version: 1 }", "canary.percent: 0, wanted 0.0001 to 100"},
      {"canary { version: 1 percent: 100.5 }", "canary.percent: 100.5, wanted 0.0001 to 100"},
      {"canary { version: 1 percent: -1 }", "canary.percent: -1, wanted 0.0001 to 100"},
      {"canary { version: 1 percent: nan }", "canary.percent: nan, wanted 0.0001 to 100"},
      {"version_alias { version: 1 }", "version_alias[0].name: \"\", wanted 1 to 64 letters"},
      {"version_alias { name: \"1\" version: 1 }", "version_alias[0].name: \"1\", wanted"},
      {"version_alias { name: \"a/b\" version: 1 }", "version_alias[0].name: \"a/b\", wanted"},
      {"version_alias { name: \"a\" }", "version_alias[0].version: 0, wanted a version from 1 on"},
      {"version_alias { name: \"a\" version: 1 } version_alias { name: \"a\" version: 2 }",
       "version_alias[1].name: \"a\", wanted each name once"},
  };
  for (const auto& [fields, message] : cases) {
    const absl::Status status = CheckModelConfig(Config(fields));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << fields;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << fields;
  }
  EXPECT_THAT(std::string(ParseModelConfig("rms_norm { normalized_shape: 4 } version_policy { "
                                           "all {} latest { num_versions: 1 } }")
                              .status()
                              .message()),
              HasSubstr("version_policy.latest: a second choice, wanted one"));
  EXPECT_THAT(std::string(ParseModelConfig("latest { num_versions: 1 }").status().message()),
              HasSubstr("; it belongs inside version_policy"));
}

// Every outcome that a version may have, in thousands of repositories and configs, against what
// must hold whatever they are.
TEST(VersionPlanTest, NoChoiceTakesTheLastServingVersionAway) {
  const unsigned seed = std::random_device()();
  RecordProperty("seed", static_cast<int>(seed));
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto below = [&random](std::uint32_t n) {
    return std::uniform_int_distribution<std::uint32_t>(0, n - 1)(random);
  };
  for (int round = 0; round < 20'000; ++round) {
    VersionPlan plan;
    plan.is_list = below(3) == 0;
    plan.latest = 1 + below(4);
    if (below(2) == 0) plan.canary = 1 + below(8);
    for (std::int64_t version = 1; version <= 8; ++version) {
      if (plan.is_list && below(3) == 0) plan.listed.push_back(version);
      if (below(8) == 0) plan.aliases.emplace_back("a", version);
    }
    std::map<std::int64_t, VersionOutcome> outcomes;
    Versions present;
    for (std::int64_t version = 1; version <= 8; ++version) {
      if (below(2) == 0) continue;
      present.push_back(version);
      outcomes[version] = static_cast<VersionOutcome>(below(4));
    }
    std::map<std::int64_t, int> asked;
    const VersionChoice choice = ChooseVersions(plan, present, [&](std::int64_t version) {
      ++asked[version];
      return outcomes.at(version);
    });
    Versions once;
    for (const auto& [version, times] : asked) {
      EXPECT_EQ(times, 1);
      once.push_back(version);
    }
    EXPECT_EQ(choice.held, once);
    const auto is = [&outcomes](VersionOutcome outcome) {
      return [&outcomes, outcome](std::int64_t version) {
        return outcomes.count(version) != 0 && outcomes.at(version) == outcome;
      };
    };
    const auto serves = is(VersionOutcome::kServes);
    const auto unloaded = is(VersionOutcome::kUnloaded);
    std::size_t placed = 0;  // Towards the policy's number.
    std::size_t could_be_placed = 0;
    bool any_serves = false;
    for (const std::int64_t version : present) {
      if ((!serves(version) && !unloaded(version)) || version == plan.canary) continue;
      ++could_be_placed;
      placed += asked.count(version);
      any_serves |= asked.count(version) != 0 && serves(version);
    }
    if (!plan.is_list) {
      EXPECT_GE(placed, std::min(could_be_placed, plan.latest));
    }
    EXPECT_TRUE(!choice.may_retire || any_serves);
    const auto any_held = [&choice](auto has) {
      return std::any_of(choice.held.begin(), choice.held.end(), has);
    };
    EXPECT_TRUE(!choice.may_vanish || any_held(serves));
    EXPECT_TRUE(!choice.may_vanish || any_serves || !any_held(is(VersionOutcome::kUnsettled)));
    for (const std::int64_t version : plan.listed) {
      const bool fails = outcomes.count(version) != 0 && !serves(version) && !unloaded(version);
      EXPECT_FALSE(plan.is_list && fails && choice.may_retire);
    }
  }
}

TEST(CanaryTest, AnyStretchOfRequestsHasTheShareToWithinOne) {
  for (const double percent : {0.0001, 0.1, 1.0, 5.0, 33.3333, 50.0, 99.0, 100.0}) {
    const auto millionths = static_cast<std::uint64_t>(percent * 10'000 + 0.5);
    std::vector<std::int64_t> taken = {0};  // By the requests before each.
    for (std::uint64_t i = 0; i < 2'000'000; ++i) {
      taken.push_back(taken.back() + (GoesToCanary(i, millionths) ? 1 : 0));
    }
    EXPECT_EQ(taken[1'000'000], static_cast<std::int64_t>(millionths));
    EXPECT_EQ(taken[1'500'000] - taken[500'000], static_cast<std::int64_t>(millionths));
    for (const std::size_t n : {1, 7, 100, 1000, 12'345}) {
      const double wanted = static_cast<double>(n) * percent / 100;
      for (std::size_t begin = 0; begin + n < taken.size(); begin += 997) {
        const auto got = static_cast<double>(taken[begin + n] - taken[begin]);
        ASSERT_LT(std::abs(got - wanted), 1.001) << percent << "% of " << n << " from " << begin;
      }
    }
  }
}

}  // namespace
}  // namespace normd
