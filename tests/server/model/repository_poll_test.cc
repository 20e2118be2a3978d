// The repository as it changes below a server that follows it.

#include "server/model/repository_poll.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/model/repository_poll_fixture.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

TEST_F(RepositoryPollTest, LoadsAVersionThatRestsAndRetiresTheOneBefore) {
  WriteModel("m", 1, 1);
  Start();
  WriteModel("m", 2, 2);
  Look();
  EXPECT_THAT(Known(), ElementsAre("m/1"));
  Look();
  EXPECT_THAT(Known(), ElementsAre("m/2"));
  EXPECT_EQ(Served(), 2);
  EXPECT_EQ(registry().Find("m", 1).status(),
            absl::NotFoundError("model: m, version 1 is not loaded; known versions: 2"));
  // A health watch on the model sees no gap.
  for (const auto& [name, loaded] : changes_) EXPECT_TRUE(loaded);
}

TEST_F(RepositoryPollTest, LoadsNothingAnewWithoutAChange) {
  WriteModel("m", 1, 1);
  int prepared = 0;
  backend_.prepare = [&prepared](const Model&) {
    ++prepared;
    return FakeBackend::Prepared(nullptr);
  };
  Start();
  Look(5);
  EXPECT_EQ(prepared, 1);
  EXPECT_EQ(Metric("normd_model_repository_polls_total{result=\"complete\"}"), 6);
}

TEST_F(RepositoryPollTest, LoadsAModelThatComes) {
  Start();
  WriteModel("m", 3, 3);
  Look(2);
  EXPECT_EQ(Served(), 3);
}

TEST_F(RepositoryPollTest, TakesARenamedFolderAndNothingBeforeTheRename) {
  WriteModel("m", 1, 1);
  Start();
  for (const char* folder : {"2.tmp", ".2", "2~"}) {
    dir_.Write(absl::StrCat("m/", folder, "/params.safetensors"), Weights(2));
    Look(3);
    EXPECT_THAT(Known(), ElementsAre("m/1"));
  }
  fs::rename(Path("m/2.tmp"), Path("m/2"));
  Look(2);
  EXPECT_EQ(Served(), 2);
}

// As a slow copy in place: after each byte there is a look, and the copy may stall there for longer
// than a look takes.
TEST_F(RepositoryPollTest, NeverServesAFileThatIsHalfCopied) {
  WriteModel("m", 1, 1);
  Start();
  const std::string whole = Weights(2);
  fs::create_directory(Path("m/2"));
  std::ofstream file(Path("m/2/params.safetensors"), std::ios::binary);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    Look(i % 3 == 0 ? 3 : 1);
    ASSERT_EQ(Served(), 1) << i;
    const auto second = registry().Find("m", 2);
    ASSERT_FALSE(second.ok()) << i;
    file.put(whole[i]).flush();
  }
  file.close();
  Look(2);
  EXPECT_EQ(Served(), 2);
  EXPECT_THAT(Known(), ElementsAre("m/2"));
}

TEST_F(RepositoryPollTest, ABrokenVersionChangesNothingAndIsToldOnce) {
  const float nan = std::nanf("");
  const std::pair<std::string, const char*> poisons[] = {
      {"", "params.safetensors: 0 bytes, wanted at least 8"},
      {Weights(2).substr(0, 70), "params.safetensors: "},
      {Weights(2) + "x", "params.safetensors: "},
      {Weights(nan), "parameter weight: element 0 is NaN, wanted numbers"},
      {Safetensors({FloatTensor("weight", {1, 2, 3, 4, 5})}),
       "parameter weight: shape [5], wanted [4]"},
      {Safetensors({FloatTensor("wait", {1, 2, 3, 4})}), "weight"},
  };
  WriteModel("m", 1, 1);
  Start();
  int failures = 0;
  int version = 1;
  for (const auto& [content, reason] : poisons) {
    const ErrorLog log;
    WriteWeights("m", ++version, content);
    Look(5);
    EXPECT_EQ(Served(), 1) << reason;
    EXPECT_THAT(ErrorOf("m", version), HasSubstr(reason));
    EXPECT_EQ(Metric("normd_model_load_failures_total"), ++failures);
    EXPECT_EQ(Metric("normd_model_versions{state=\"failed\"}"), failures);
    ASSERT_EQ(log.lines().size(), 1u) << reason;
    EXPECT_THAT(log.lines()[0],
                HasSubstr(absl::StrCat("model m, version ", version, ": load failed: ")));
  }
  // A good one makes an end of all of them.
  WriteWeights("m", ++version, Weights(9));
  Look(2);
  EXPECT_EQ(Served(), 9);
  EXPECT_THAT(Known(), ElementsAre(absl::StrCat("m/", version)));
  EXPECT_EQ(Metric("normd_model_versions{state=\"failed\"}"), 0);
}

TEST_F(RepositoryPollTest, ABrokenVersionThatIsMendedIsLoaded) {
  WriteModel("m", 1, 1);
  Start();
  WriteWeights("m", 2, "broken");
  Look(2);
  EXPECT_EQ(Served(), 1);
  WriteWeights("m", 2, Weights(2));
  Look(2);
  EXPECT_EQ(Served(), 2);
}

TEST_F(RepositoryPollTest, ABrokenConfigChangesNothing) {
  WriteModel("m", 1, 1);
  Start();
  for (const char* broken : {"rms_norm {", "rms_norm { normalized_shape: 5 }",
                             "rms_norm { normalized_shape: 4 } canary { version: -1 }", ""}) {
    const ErrorLog log;
    dir_.Write("m/config.textproto", broken);
    Look(5);
    EXPECT_EQ(Served(), 1) << broken;
    EXPECT_NE(ErrorOf("m"), "") << broken;
    EXPECT_EQ(log.lines().size(), 1u) << broken;
  }
  fs::remove(Path("m/config.textproto"));
  Look(3);
  EXPECT_EQ(Served(), 1);
  EXPECT_THAT(ErrorOf("m"), HasSubstr("config.textproto: no such file"));
  dir_.Write("m/config.textproto", kConfig);
  Look(2);
  EXPECT_EQ(ErrorOf("m"), "");
}

// A replica that starts beside a broken version serves what the others serve.
TEST_F(RepositoryPollTest, TheStartPassesOverABrokenVersion) {
  WriteModel("m", 1, 1);
  WriteModel("m", 2, 2);
  WriteWeights("m", 3, "broken");
  Start();
  EXPECT_THAT(Known(), ElementsAre("m/2", "m/3!"));
  Look(3);
  EXPECT_EQ(Served(), 2);
  EXPECT_EQ(Metric("normd_model_load_failures_total"), 1);
}

TEST_F(RepositoryPollTest, TakesAFileThatIsReplaced) {
  WriteModel("m", 1, 1);
  Start();
  WriteWeights("m", 1, Weights(2));
  Look(2);
  EXPECT_EQ(Served(), 2);
  WriteConfig("version_policy { all {} }");
  WriteWeights("m", 2, Weights(3));
  Look(2);
  EXPECT_THAT(Known(), ElementsAre("m/1", "m/2"));
}

TEST_F(RepositoryPollTest, AVersionThatVanishesLeavesItsRequestsAndAnotherVersion) {
  WriteModel("m", 1, 1);
  WriteModel("m", 2, 2);
  Start();
  std::shared_ptr<const Model> in_flight = *registry().Find("m", 2);
  fs::remove_all(Path("m/2"));
  Look();
  EXPECT_THAT(Known(), ElementsAre("m/1", "m/2"));
  Look();
  EXPECT_EQ(FirstWeight(*in_flight), 2);
  EXPECT_EQ(Served(), 1);
  EXPECT_EQ(registry().Find("m", 2).status(),
            absl::NotFoundError("model: m, version 2 is not loaded; known versions: 1"));
  EXPECT_EQ(Metric("normd_model_versions{state=\"loaded\"}"), 1);
}

TEST_F(RepositoryPollTest, TheLastVersionGoesWhenItVanishes) {
  WriteModel("m", 1, 1);
  WriteModel("n", 1, 1);
  Start();
  fs::remove_all(Path("m/1"));
  fs::remove_all(Path("n"));
  Look(2);
  EXPECT_THAT(Known(), IsEmpty());
  EXPECT_EQ(registry().Find("m", 0).status(),
            absl::NotFoundError("model: m is not loaded; no version is loaded"));
  WriteModel("n", 1, 5);
  Look(2);
  EXPECT_EQ(Served("n"), 5);
}

TEST_F(RepositoryPollTest, OneLookBetweenAnUnlinkAndARenameTakesNothingAway) {
  WriteModel("m", 1, 1);
  Start();
  fs::rename(Path("m/1"), Path("m/.1"));
  Look();
  EXPECT_EQ(Served(), 1);
  fs::rename(Path("m/.1"), Path("m/1"));
  Look();
  fs::rename(Path("m"), Path(".m"));
  Look();
  EXPECT_EQ(Served(), 1);
  fs::rename(Path(".m"), Path("m"));
  Look(3);
  EXPECT_EQ(Served(), 1);
  EXPECT_EQ(changes_.size(), 1u);
}

TEST_F(RepositoryPollTest, ARootThatIsGoneTakesNothingAway) {
  WriteModel("m", 1, 1);
  Start();
  const ErrorLog log;
  const std::string away = dir_.path() + ".away";
  fs::rename(dir_.path(), away);
  Look(4);
  EXPECT_EQ(Served(), 1);
  EXPECT_EQ(Metric("normd_model_repository_polls_total{result=\"incomplete\"}"), 4);
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_THAT(log.lines()[0], HasSubstr(dir_.path()));
  fs::rename(away, dir_.path());
  WriteModel("m", 2, 2);
  Look(2);
  EXPECT_EQ(Served(), 2);
}

// A ConfigMap's volume, and other atomic writers: all of it is a link that is exchanged.
TEST_F(RepositoryPollTest, FollowsALinkThatIsExchanged) {
  const auto write = [this](const std::string& folder, float value) {
    dir_.Write(folder + "/m/config.textproto", kConfig);
    dir_.Write(folder + "/m/1/params.safetensors", Weights(value));
    fs::create_directory_symlink(folder, Path("..data_tmp"));
    fs::rename(Path("..data_tmp"), Path("..data"));
  };
  write("..2026_1", 1);
  fs::create_directory_symlink("..data/m", Path("m"));
  Start();
  EXPECT_EQ(Served(), 1);
  write("..2026_2", 2);
  fs::remove_all(Path("..2026_1"));
  Look(2);
  EXPECT_EQ(Served(), 2);
  // With broken files the old ones serve, although they are gone.
  write("..2026_3", std::nanf(""));
  fs::remove_all(Path("..2026_2"));
  Look(4);
  EXPECT_EQ(Served(), 2);
}

TEST_F(RepositoryPollTest, ReadsAnUnknownModelsFolderWithoutFollowingALinkOut) {
  const TempFolder outside;
  outside.Write("m/config.textproto", kConfig);
  outside.Write("m/1/params.safetensors", Weights(9));
  WriteModel("good", 1, 1);
  Start();
  fs::create_directory_symlink(outside.path() + "/m", Path("m"));
  const ErrorLog log;
  Look(4);
  EXPECT_FALSE(registry().Find("m", 0).ok());
  EXPECT_THAT(ErrorOf("m"), HasSubstr("leads out of the model repository"));
  EXPECT_EQ(Served("good"), 1);
}

TEST_F(RepositoryPollTest, TwoFoldersAreOneRepository) {
  const TempFolder second;
  RegistryOptions options;
  options.roots = {dir_.path(), second.path()};
  ModelRegistry both(options, backend_, metrics_, clock_);
  WriteModel("a", 1, 1);
  second.Write("b/config.textproto", kConfig);
  second.Write("b/1/params.safetensors", Weights(2));
  ASSERT_TRUE(both.LoadAll().ok());
  RepositoryPoll poll(both, metrics_, clock_);
  poll.Look();
  EXPECT_EQ(FirstWeight(**both.Find("a", 0)), 1);
  EXPECT_EQ(FirstWeight(**both.Find("b", 0)), 2);
  EXPECT_EQ(both.Load("c", 0).status(), absl::NotFoundError("model: c is not in the repository"));

  // A second folder of the same name: the model stays as it is, and both sides say why.
  const ErrorLog log;
  WriteModel("b", 2, 3);
  for (int i = 0; i < 4; ++i) poll.Look();
  EXPECT_EQ(FirstWeight(**both.Find("b", 0)), 2);
  const std::string told = "it lies in folders 1 and 2 of --model_repository, wanted one";
  EXPECT_EQ(both.Get("b", 0)->error, absl::InvalidArgumentError(told));
  EXPECT_EQ(both.Load("b", 2).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_FALSE(log.lines().empty());
  EXPECT_THAT(log.lines()[0],
              HasSubstr(absl::StrCat("model b: it lies in \"", dir_.path(), "\" and in \"",
                                     second.path(), "\", wanted one folder")));
  EXPECT_EQ(log.lines().size(), 2u);  // That, and the load's.
  ModelRegistry fresh(options, backend_, metrics_, clock_);
  const absl::Status start = fresh.LoadAll();
  EXPECT_EQ(start.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(start.message()), HasSubstr(dir_.path()));
  EXPECT_THAT(std::string(start.message()), HasSubstr(second.path()));

  fs::remove_all(Path("b"));
  for (int i = 0; i < 2; ++i) poll.Look();
  EXPECT_TRUE(both.Get("b", 0)->error.ok()) << both.Get("b", 0)->error;
  // One folder that is gone takes nothing from either.
  fs::rename(second.path(), second.path() + ".away");
  for (int i = 0; i < 3; ++i) poll.Look();
  EXPECT_TRUE(both.Find("b", 0).ok());
  fs::rename(second.path() + ".away", second.path());
}

// Versions come, go and break below requests that name none: each finds a whole one.
TEST_F(RepositoryPollTest, NoRequestWithoutAVersionFailsWhileVersionsComeAndGo) {
  WriteModel("m", 1, 1);
  WriteConfig("version_policy { latest { num_versions: 2 } } canary { version: 9 percent: 30 }");
  Start();
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> failed{0};
  std::atomic<std::int64_t> found{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      while (!stop.load()) {
        ++(registry().FindForRequest("m", 0).ok() ? found : failed);
      }
    });
  }
  for (int version = 2; version < 30; ++version) {
    WriteWeights("m", version, version % 3 == 0 ? "broken" : Weights(1));
    if (version % 4 == 0) fs::remove_all(Path(absl::StrCat("m/", version - 1)));
    if (version % 5 == 0) fs::remove_all(Path("m/9"));
    if (version % 5 == 2) WriteWeights("m", 9, Weights(1));
    Look(1 + version % 3);
  }
  stop.store(true);
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failed.load(), 0);
  EXPECT_GT(found.load(), 0);
}

TEST_F(RepositoryPollTest, TheThreadLooksAndEnds) {
  WriteModel("m", 1, 1);
  ASSERT_TRUE(registry().LoadAll().ok());
  poll_ = std::make_unique<RepositoryPoll>(registry(), metrics_, clock_);
  poll_->Watch(std::chrono::milliseconds(1));
  WriteModel("m", 2, 2);
  WaitUntil([&] { return Served() == 2; });
  poll_.reset();
}

}  // namespace
}  // namespace normd::testing
