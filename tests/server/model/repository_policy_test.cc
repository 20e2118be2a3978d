// Which versions a followed repository's config asks for, and what a client and a lack change of
// it.

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/model/repository_poll_fixture.h"
#include "tests/support/threads.h"

namespace normd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

TEST_F(RepositoryPollTest, FollowsThePolicyAsItChanges) {
  for (const int version : {1, 2, 3, 4}) WriteModel("m", version, static_cast<float>(version));
  WriteConfig("version_policy { latest { num_versions: 2 } }");
  Start();
  EXPECT_THAT(Known(), ElementsAre("m/3", "m/4"));
  WriteConfig("version_policy { specific { versions: [1, 3] } }");
  Look(2);
  EXPECT_THAT(Known(), ElementsAre("m/1", "m/3"));
  WriteConfig("version_policy { all {} }");
  Look(2);
  EXPECT_THAT(Known(), ElementsAre("m/1", "m/2", "m/3", "m/4"));
  WriteConfig("");
  Look(2);
  EXPECT_THAT(Known(), ElementsAre("m/4"));
}

TEST_F(RepositoryPollTest, APinOnABrokenVersionRetiresNothing) {
  WriteModel("m", 1, 1);
  WriteConfig("version_policy { specific { versions: 1 } }");
  Start();
  WriteWeights("m", 2, "broken");
  WriteConfig("version_policy { specific { versions: 2 } }");
  Look(4);
  EXPECT_EQ(Served(), 1);
  WriteConfig("version_policy { specific { versions: 7 } }");
  Look(4);
  EXPECT_EQ(Served(), 1);
  WriteWeights("m", 7, Weights(7));
  Look(2);
  EXPECT_THAT(Known(), ElementsAre("m/7"));
}

TEST_F(RepositoryPollTest, TellsOnceThatThePolicyWantsNoneOfTheVersions) {
  WriteModel("m", 1, 1);
  WriteConfig("version_policy { specific { versions: 7 } }");
  Start();
  EXPECT_THAT(Known(), ElementsAre("m/0!"));
  const ErrorLog log;
  Look(3);
  EXPECT_TRUE(log.lines().empty());
  WriteWeights("m", 2, Weights(2));
  Look(4);
  EXPECT_EQ(ErrorOf("m"),
            "none of version_policy.specific.versions, 7, is in the repository, which holds "
            "versions 1, 2");
  EXPECT_EQ(log.lines().size(), 1u);
  EXPECT_EQ(Metric("normd_model_versions{state=\"failed\"}"), 1);
  WriteWeights("m", 7, Weights(7));
  Look(2);
  EXPECT_THAT(Known(), ElementsAre("m/7"));
  EXPECT_EQ(Metric("normd_model_versions{state=\"failed\"}"), 0);
  // What serves stays, and is no failure.
  WriteConfig("version_policy { specific { versions: 9 } }");
  Look(4);
  EXPECT_THAT(Known(), ElementsAre("m/7"));
  ASSERT_EQ(log.lines().size(), 2u);
  EXPECT_THAT(log.lines()[1], HasSubstr("none of version_policy.specific.versions, 9, is in"));
}

TEST_F(RepositoryPollTest, ACanaryTakesItsShareAndLeavesIt) {
  for (const int version : {1, 2, 3}) WriteModel("m", version, static_cast<float>(version));
  WriteConfig("canary { version: 3 percent: 5 } version_alias { name: \"old\" version: 1 }");
  Start();
  EXPECT_THAT(Known(), ElementsAre("m/1", "m/2", "m/3"));
  EXPECT_EQ(*registry().VersionOfAlias("m", "old"), 1);
  EXPECT_EQ(registry().VersionOfAlias("m", "new").status(),
            absl::NotFoundError(
                "model: m has no version \"new\"; known versions: 1, 2, 3; names: old (1)"));
  const auto shares = [this] {
    std::map<std::int64_t, int> counts;
    for (int i = 0; i < 1000; ++i) ++counts[(*registry().FindForRequest("m", 0))->version()];
    return counts;
  };
  EXPECT_THAT(shares(), ElementsAre(std::pair(2, 950), std::pair(3, 50)));
  // Looking takes nothing of the share.
  EXPECT_EQ(Served(), 2);
  WriteWeights("m", 3, Weights(4));
  Look(2);
  EXPECT_THAT(shares(), ElementsAre(std::pair(2, 950), std::pair(3, 50)));
  fs::remove_all(Path("m/3"));
  Look(2);
  EXPECT_THAT(shares(), ElementsAre(std::pair(2, 1000)));
  WriteConfig("");
  Look(2);
  EXPECT_THAT(Known(), ElementsAre("m/2"));
  EXPECT_EQ(registry().VersionOfAlias("m", "old").status(),
            absl::InvalidArgumentError("model_version: \"old\", wanted a number from 1: the model "
                                       "has no alias"));
}

TEST_F(RepositoryPollTest, WhatAClientDoesStaysUntilTheRepositoryChanges) {
  for (const int version : {1, 2}) WriteModel("m", version, static_cast<float>(version));
  Start();
  ASSERT_TRUE(registry().Load("m", 1).ok());
  Look(3);
  EXPECT_THAT(Known(), ElementsAre("m/1", "m/2"));
  ASSERT_TRUE(registry().Unload("m", 0).ok());
  WriteModel("other", 1, 1);
  Look(3);
  EXPECT_THAT(Known(), ElementsAre("other/1"));
  WriteModel("m", 3, 3);
  Look(2);
  EXPECT_THAT(Known(), ElementsAre("m/3", "other/1"));
}

// Without an interval, no look may come between a version and its end by a client.
TEST_F(RepositoryPollTest, WhatAClientUnloadsBeforeALookStaysUntilItsFilesChange) {
  WriteModel("m", 1, 1);
  Start();
  WriteModel("m", 2, 2);
  WriteModel("n", 1, 1);
  for (const char* name : {"m", "n"}) {
    ASSERT_TRUE(registry().Load(name, 0).ok());
    ASSERT_TRUE(registry().Unload(name, 0).ok());
  }
  Look(3);
  EXPECT_THAT(Known(), IsEmpty());
  WriteWeights("m", 2, Weights(3));
  Look(2);
  EXPECT_THAT(Known(), ElementsAre("m/2"));
  // The same for files that the last look had not seen.
  WriteWeights("m", 2, Weights(4));
  ASSERT_TRUE(registry().Load("m", 2).ok());
  ASSERT_TRUE(registry().Unload("m", 2).ok());
  Look(3);
  EXPECT_THAT(Known(), IsEmpty());
}

TEST_F(RepositoryPollTest, WhatAClientUnloadedIsNewWhenItComesBack) {
  for (const int version : {1, 2}) WriteModel("m", version, static_cast<float>(version));
  Start();
  ASSERT_TRUE(registry().Load("m", 1).ok());
  ASSERT_TRUE(registry().Unload("m", 1).ok());
  fs::rename(Path("m/1"), Path("m/.1"));
  Look(2);
  fs::rename(Path("m/.1"), Path("m/1"));
  Look(2);
  EXPECT_THAT(Known(), ElementsAre("m/2"));
  fs::remove_all(Path("m/2"));
  Look(2);
  EXPECT_THAT(Known(), ElementsAre("m/1"));
}

TEST_F(RepositoryPollTest, ALackThatMayPassIsTriedEveryMinute) {
  WriteModel("m", 1, 1);
  Start();
  int tries = 0;
  bool full = true;
  backend_.prepare = [&](const Model&) -> FakeBackend::Prepared {
    ++tries;
    if (full) return absl::ResourceExhaustedError("device: 1 of 2 GB");
    return FakeBackend::Prepared(nullptr);
  };
  const ErrorLog log;
  WriteWeights("m", 2, Weights(2));
  Look(5);
  EXPECT_EQ(tries, 1);
  clock_.Advance(std::chrono::seconds(61));
  Look(3);
  EXPECT_EQ(tries, 2);
  EXPECT_EQ(Served(), 1);
  EXPECT_EQ(log.lines().size(), 1u);
  full = false;
  clock_.Advance(std::chrono::seconds(61));
  Look();
  EXPECT_EQ(Served(), 2);
}

TEST_F(RepositoryPollTest, ALookThatIsAskedForTriesAgainOnceHoweverSoon) {
  WriteModel("m", 1, 1);
  Start();
  int tries = 0;
  backend_.prepare = [&](const Model&) -> FakeBackend::Prepared {
    ++tries;
    return absl::ResourceExhaustedError("device: 1 of 2 GB");
  };
  WriteWeights("m", 2, Weights(2));
  Look(2);
  ASSERT_EQ(tries, 1);
  poll_->LookSoon();
  poll_->Watch(Duration(0));
  // The first look of the thread, and the two that are asked for.
  WaitUntil([&] { return Metric("normd_model_repository_polls_total{result=\"complete\"}") >= 6; });
  poll_.reset();
  EXPECT_EQ(tries, 2);
}

TEST_F(RepositoryPollTest, TellsOnceThatThereIsNoRoom) {
  max_models_ = 1;
  WriteModel("m", 1, 1);
  Start();
  const ErrorLog log;
  WriteModel("n", 1, 2);
  for (int i = 0; i < 3; ++i) {
    Look(3);
    clock_.Advance(std::chrono::seconds(61));
  }
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_THAT(log.lines()[0], HasSubstr("model n, version 1: not loaded: RESOURCE_EXHAUSTED"));
}

TEST_F(RepositoryPollTest, LoadsWhatTheStartLeftOutOnceThereIsRoom) {
  max_models_ = 1;
  for (const char* name : {"m", "n", "o"}) WriteModel(name, 1, 1);
  Start();
  Look(2);
  ASSERT_THAT(Known(), ElementsAre("m/1"));
  fs::remove_all(Path("m"));
  Look(3);
  EXPECT_THAT(Known(), ElementsAre("n/1"));
  ASSERT_TRUE(registry().Unload("n", 0).ok());
  Look();
  EXPECT_THAT(Known(), ElementsAre("o/1"));
}

class VersionFieldsTest : public RepositoryPollTest {
 protected:
  // Two versions, of which the second is the canary of a percent; both are loaded.
  void SetUp() override {
    for (const int version : {1, 2}) WriteModel("m", version, static_cast<float>(version));
    backend_.prepare = [this](const Model&) {
      ++prepared_;
      return FakeBackend::Prepared(std::make_unique<BackendState>());
    };
    WriteConfig("canary { version: 2 percent: 1 }");
    Start();
    ASSERT_THAT(Known(), ElementsAre("m/1", "m/2"));
    ASSERT_EQ(prepared_, 2);
  }
  int OfTheCanary() {
    int count = 0;
    for (int i = 0; i < 100; ++i) count += (*registry().FindForRequest("m", 0))->version() == 2;
    return count;
  }

  int prepared_ = 0;
};

TEST_F(VersionFieldsTest, ANewShareOrAliasIsTakenWithoutALoad) {
  const std::shared_ptr<const Model> before = *registry().Find("m", 1);
  for (const int percent : {50, 100, 3}) {
    WriteConfig(absl::StrCat("canary { version: 2 percent: ", percent,
                             " } version_alias { name: \"stable\" version: 1 }"));
    Look(2);
    EXPECT_EQ(OfTheCanary(), percent);
    EXPECT_EQ(*registry().VersionOfAlias("m", "stable"), 1);
    const std::shared_ptr<const Model> now = *registry().Find("m", 1);
    EXPECT_EQ(now->config().canary().percent(), percent);
    EXPECT_EQ(now->backend_state(), before->backend_state());
    EXPECT_EQ(now->parameters()[0].data, before->parameters()[0].data);
  }
  EXPECT_EQ(before->config().canary().percent(), 1);
  Look(3);
  EXPECT_EQ(prepared_, 2);
}

TEST_F(VersionFieldsTest, ANewPolicyLoadsOnlyWhatItAdds) {
  WriteWeights("m", 3, Weights(3));
  Look(2);
  ASSERT_THAT(Known(), ElementsAre("m/2", "m/3"));
  EXPECT_EQ(prepared_, 3);
  WriteConfig("version_policy { latest { num_versions: 3 } }");
  Look(2);
  EXPECT_THAT(Known(), ElementsAre("m/1", "m/2", "m/3"));
  EXPECT_EQ(prepared_, 4);
  EXPECT_EQ(Served("m", 1), 1);
}

TEST_F(VersionFieldsTest, AnotherChangeBesideItLoadsAnew) {
  WriteConfig("canary { version: 2 percent: 1 } description: \"new\"");
  Look(2);
  EXPECT_EQ(prepared_, 4);
  WriteConfig("canary { version: 2 percent: 9 } description: \"new\"");
  WriteWeights("m", 1, Weights(7));
  Look(2);
  EXPECT_EQ(prepared_, 5);
  EXPECT_EQ(Served("m", 1), 7);
  EXPECT_EQ(Served("m", 2), 2);
}

TEST_F(VersionFieldsTest, TheStateOutlivesTheModelThatItWasMadeFor) {
  std::weak_ptr<const Model> first = *registry().Find("m", 1);
  const KernelProgram* const program = &first.lock()->program();  // To which the state may refer.
  WriteConfig("canary { version: 2 percent: 5 }");
  Look(2);
  WriteConfig("canary { version: 2 percent: 6 }");
  Look(2);
  EXPECT_EQ(&(*registry().Find("m", 1))->program(), program);
  EXPECT_EQ(Served("m", 1), 1);
  ASSERT_TRUE(registry().Unload("m", 0).ok());
  EXPECT_TRUE(first.expired());
}

}  // namespace
}  // namespace normd
