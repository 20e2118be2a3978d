// A model's folder through every short sequence of changes, and through long random ones: what
// serves stays until something else does.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/model/config.h"
#include "server/model/version_plan.h"
#include "tests/server/model/repository_poll_fixture.h"

namespace normd {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Versions = std::vector<std::int64_t>;

constexpr int kVersions = 3;

enum class File { kMissing, kGood, kBroken };

// The model's folder at one moment. No config: the folder is gone.
struct Folder {
  const char* config = "good";
  File versions[kVersions] = {File::kGood, File::kGood, File::kMissing};

  std::string name() const {
    std::string name(config);
    for (const File file : versions) absl::StrAppend(&name, "-", static_cast<int>(file));
    return name;
  }
  bool HasAny() const {
    for (const File file : versions) {
      if (config != nullptr && file != File::kMissing) return true;
    }
    return false;
  }
};

constexpr const char* kConfigs[][2] = {
    {"good", ""},
    {"broken", "nope"},
    {"both", "version_policy { latest { num_versions: 2 } }"},
    {"list", "version_policy { specific { versions: [2] } }"},
    {"canary", "canary { version: 2 percent: 50 }"},
};

// What may happen between two looks. A client's loads and unloads are changes too.
struct Change {
  enum What { kConfig, kVersion, kFolder, kLoad, kUnload } what;
  const char* config = nullptr;
  int version = 0;
  File file = File::kMissing;

  std::string name() const {
    switch (what) {
      case kConfig: return absl::StrCat("config ", config);
      case kVersion: return absl::StrCat("version ", version, " ", static_cast<int>(file));
      case kFolder: return "folder gone";
      case kLoad: return absl::StrCat("load ", version);
      case kUnload: return absl::StrCat("unload ", version);
    }
    return "";
  }
};

std::vector<Change> AllChanges() {
  std::vector<Change> changes = {{Change::kFolder}, {Change::kVersion, nullptr, 2, File::kBroken}};
  for (const auto& config : kConfigs) changes.push_back({Change::kConfig, config[0]});
  for (int version = 1; version <= kVersions; ++version) {
    for (const File file : {File::kMissing, File::kGood}) {
      changes.push_back({Change::kVersion, nullptr, version, file});
    }
    if (version == kVersions) continue;
    changes.push_back({Change::kLoad, nullptr, version});
    changes.push_back({Change::kUnload, nullptr, version});
  }
  return changes;
}

// Every folder is there from the start, and they share their files, so a change is an exchange of
// the model's link: no file is new, and none is read twice for being young.
class RepositoryWalkTest : public RepositoryPollTest {
 protected:
  void SetUp() override {
    level_ = spdlog::get_level();
    spdlog::set_level(spdlog::level::off);
    for (const auto& [name, fields] : kConfigs) {
      dir_.Write(absl::StrCat(".all/files/", name), absl::StrCat(kConfig, " ", fields));
    }
    for (int version = 1; version <= kVersions + 1; ++version) {
      dir_.Write(absl::StrCat(".all/files/", version, "-1"), Weights(static_cast<float>(version)));
      dir_.Write(absl::StrCat(".all/files/", version, "-2"), "broken");
    }
    for (const auto& config : kConfigs) {
      for (int files = 0; files < 27; ++files) {
        MakeFolder({config[0], {File(files % 3), File(files / 3 % 3), File(files / 9)}});
      }
    }
    fs::create_directories(Path(".all/last/4"));
    fs::create_hard_link(Path(".all/files/good"), Path(".all/last/config.textproto"));
    fs::create_hard_link(Path(".all/files/4-1"), Path(".all/last/4/params.safetensors"));
  }
  void TearDown() override { spdlog::set_level(level_); }

  void MakeFolder(const Folder& folder) {
    const std::string path = Path(".all/" + folder.name());
    fs::create_directories(path);
    fs::create_hard_link(Path(absl::StrCat(".all/files/", folder.config)),
                         path + "/config.textproto");
    for (int i = 0; i < kVersions; ++i) {
      if (folder.versions[i] == File::kMissing) continue;
      const std::string version = absl::StrCat(path, "/", i + 1);
      fs::create_directory(version);
      fs::create_hard_link(
          Path(absl::StrCat(".all/files/", i + 1, "-", static_cast<int>(folder.versions[i]))),
          version + "/params.safetensors");
    }
  }
  void LinkTo(const std::string& name) {
    fs::create_symlink(".all/" + name, Path(".link"));
    fs::rename(Path(".link"), Path("m"));
  }

  void Begin() {
    folder_ = {};
    LinkTo(folder_.name());
    poll_ = nullptr;
    registry_ = nullptr;
    Start();
    done_.clear();
  }
  void Apply(const Change& change) {
    done_.push_back(change.name());
    switch (change.what) {
      case Change::kLoad: registry().Load("m", change.version).IgnoreError(); return;
      case Change::kUnload: registry().Unload("m", change.version).IgnoreError(); return;
      case Change::kFolder: folder_.config = nullptr; break;
      case Change::kConfig: folder_.config = change.config; break;
      case Change::kVersion: folder_.versions[change.version - 1] = change.file; break;
    }
    if (folder_.config == nullptr) {
      fs::remove(Path("m"));
    } else {
      LinkTo(folder_.name());
    }
  }
  // Returns whether it held.
  [[nodiscard]] bool LookAndCheck(int looks) {
    for (int i = 0; i < looks; ++i) {
      const bool served = registry().Find("m", 0).ok();
      Look();
      if (!served || registry().Find("m", 0).ok() || !folder_.HasAny()) continue;
      ADD_FAILURE() << "nothing serves after: " << absl::StrJoin(done_, ", ")
                    << "; known: " << absl::StrJoin(Known(), ", ");
      return false;
    }
    return true;
  }
  // Whatever was kept goes when a good version has come.
  [[nodiscard]] bool EndsWithTheLast() {
    LinkTo("last");
    Look(3);
    if (Known() == std::vector<std::string>{"m/4"}) return true;
    ADD_FAILURE() << absl::StrJoin(Known(), ", ") << " after: " << absl::StrJoin(done_, ", ");
    return false;
  }

  Folder folder_;
  std::vector<std::string> done_;
  spdlog::level::level_enum level_ = spdlog::level::info;
};

TEST_F(RepositoryWalkTest, WhatServesStaysThroughEveryShortSequence) {
  const std::vector<Change> changes = AllChanges();
  for (const Change& first : changes) {
    for (const Change& second : changes) {
      for (const Change& third : changes) {
        Begin();
        for (const Change* change : {&first, &second, &third}) {
          Apply(*change);
          if (!LookAndCheck(2)) return;
        }
      }
    }
  }
}

TEST_F(RepositoryWalkTest, WhatServesStaysThroughLongRandomSequences) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<Change> changes = AllChanges();
  for (int round = 0; round < 100; ++round) {
    Begin();
    for (int i = 0; i < 50; ++i) {
      Apply(changes[random() % changes.size()]);
      if (!LookAndCheck(static_cast<int>(random() % 4))) return;
    }
    if (!EndsWithTheLast()) return;
  }
}

// Which versions a config wants, and how a canary's share is dealt out.

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
