// What the registry loads, knows and finds.

#include "server/model/registry.h"

#include <sys/fsuid.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "operations/kernel_program.h"
#include "tests/server/model/registry_fixture.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::ResultOf;
using ::testing::StartsWith;

TEST_F(ModelRegistryTest, LoadAllTakesTheNewestVersionOfEveryModel) {
  WriteModel("b", 1, 1);
  WriteModel("a", 2, 2);
  WriteModel("a", 10, 10);
  ASSERT_TRUE(registry().LoadAll().ok());
  EXPECT_THAT(Known(), ElementsAre("a/10", "b/1"));
  EXPECT_THAT(changes_, ElementsAre(Pair("a", true), Pair("b", true)));
  const auto model = registry().Find("a", 0);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(FirstWeight(**model), 10);
}

TEST_F(ModelRegistryTest, LoadAllGoesOnPastModelsThatFail) {
  WriteModel("good", 1, 1);
  dir_.Write("bad_config/config.textproto", "rms_norm {\n  normalised_shape: 4 }");
  WriteWeights("bad_config", 1, Weights(1));
  dir_.Write("bad_value/config.textproto", "rms_norm { normalized_shape: 0 }");
  WriteWeights("bad_value", 1, Weights(1));
  dir_.Write("no_config/1/params.safetensors", Weights(1));
  dir_.Write("no_params/config.textproto", kConfig);
  std::filesystem::create_directory(dir_.path() + "/no_params/1");
  dir_.Write("no_version/config.textproto", kConfig);
  dir_.Write("cut_params/config.textproto", kConfig);
  WriteWeights("cut_params", 1, Weights(1).substr(0, 70));
  dir_.Write("other_shape/config.textproto", "rms_norm { normalized_shape: 5 }");
  WriteWeights("other_shape", 1, Weights(1));
  const TempFolder outside;
  std::filesystem::create_symlink(outside.path(), dir_.path() + "/link_out");

  ASSERT_TRUE(registry().LoadAll().ok());
  EXPECT_THAT(Known(),
              ElementsAre("bad_config/1!", "bad_value/1!", "cut_params/1!", "good/1", "link_out/0!",
                          "no_config/1!", "no_params/1!", "no_version/0!", "other_shape/1!"));
  EXPECT_THAT(ErrorOf("bad_config"), HasSubstr("config.textproto: line 2, column "));
  EXPECT_THAT(ErrorOf("bad_value"),
              HasSubstr("config.textproto: line 1, column 12: rms_norm.normalized_shape[0]: 0, "
                        "wanted at least 1"));
  EXPECT_THAT(ErrorOf("link_out"), HasSubstr("leads out of the model repository"));
  EXPECT_THAT(ErrorOf("no_config"), HasSubstr("config.textproto: no such file"));
  EXPECT_THAT(ErrorOf("no_params"), HasSubstr("params.safetensors: no such file"));
  EXPECT_THAT(ErrorOf("no_version"), HasSubstr("no version"));
  EXPECT_THAT(ErrorOf("cut_params"), HasSubstr("params.safetensors: "));
  EXPECT_THAT(ErrorOf("other_shape"), HasSubstr("parameter weight: shape [4], wanted [5]"));
  EXPECT_EQ(ErrorOf("good"), "");
  // Nothing of the server's folders reaches a client.
  for (const ModelStatus& status : registry().List()) {
    EXPECT_THAT(status.error.ToString(), Not(HasSubstr(dir_.path())));
  }
  // A version that comes replaces the record of none.
  WriteModel("no_version", 1, 1);
  ASSERT_TRUE(registry().Load("no_version", 0).ok());
  EXPECT_THAT(Known(), AllOf(Contains("no_version/1"), Not(Contains("no_version/0!"))));
}

TEST_F(ModelRegistryTest, KnowsAModelWhosePolicyWantsNoneOfItsVersions) {
  WriteModel("m", 1, 1);
  WriteModel("m", 2, 2);
  dir_.Write("m/config.textproto",
             absl::StrCat(kConfig, " version_policy { specific { versions: [7, 9] } }"));
  ASSERT_TRUE(registry().LoadAll().ok());
  EXPECT_THAT(Known(), ElementsAre("m/0!"));
  const std::string reason =
      "none of version_policy.specific.versions, 7, 9, is in the repository, which holds versions "
      "1, 2";
  EXPECT_EQ(ErrorOf("m"), reason);
  EXPECT_EQ(registry().Load("m", 0).status(), absl::NotFoundError("model m: " + reason));
  EXPECT_THAT(changes_, IsEmpty());
  // What a client loads all the same takes the place of the record.
  ASSERT_TRUE(registry().Load("m", 1).ok());
  EXPECT_THAT(Known(), ElementsAre("m/1"));
  EXPECT_FALSE(registry().Load("m", 0).ok());
  EXPECT_THAT(Known(), ElementsAre("m/1"));
}

TEST_F(ModelRegistryTest, LoadAllLeavesOutWhatIsNoModel) {
  WriteModel("good", 1, 1);
  WriteModel(".hidden", 1, 1);
  WriteModel("upload.tmp", 1, 1);
  WriteModel("old~", 1, 1);
  WriteModel("with space", 1, 1);
  dir_.Write("README.md", "a file");
  ASSERT_TRUE(registry().LoadAll().ok());
  EXPECT_THAT(Known(), ElementsAre("good/1"));
}

TEST_F(ModelRegistryTest, VersionsArePositiveIntegersAlone) {
  WriteModel("m", 2, 2);
  for (const char* folder :
       {"0", "-3", "+4", "05", "6.tmp", ".7", "8 ", "0x9", "latest", "99999999999999999999"}) {
    dir_.Write(absl::StrCat("m/", folder, "/params.safetensors"), Weights(9));
  }
  dir_.Write("m/11", "a file");
  const auto status = registry().Load("m", 0);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->version, 2);
}

TEST_F(ModelRegistryTest, LoadAllSaysThatTheRootIsNoFolder) {
  for (const std::string& root : {dir_.path() + "/none", dir_.Write("file", "")}) {
    RegistryOptions options;
    options.roots = {root};
    ModelRegistry registry(options, backend_, metrics_, clock_);
    const absl::Status status = registry.LoadAll();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(root));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(root.ends_with("file") ? "\" cannot be listed: Not a directory"
                                                 : "\" cannot be listed: No such file"));
  }
}

TEST_F(ModelRegistryTest, TellsWhyAFolderCannotBeListed) {
  WriteModel("m", 1, 1);
  ASSERT_TRUE(registry().LoadAll().ok());
  WriteModel("n", 1, 1);
  // Root may list every folder, so it is not root who does.
  const auto load = [this](const std::string& name, std::int64_t version) {
    const int user = setfsuid(65534);
    const absl::Status status =
        name.empty() ? registry().LoadAll() : registry().Load(name, version).status();
    setfsuid(static_cast<uid_t>(user));
    return status;
  };
  namespace fs = std::filesystem;
  fs::permissions(dir_.path(), fs::perms(0755));
  for (const auto& [name, version] : std::map<std::string, std::int64_t>{{"m", 1}, {"n", 0}}) {
    fs::permissions(dir_.path() + "/" + name, fs::perms::none);
    const absl::Status status = load(name, version);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(std::string(status.message()),
                EndsWith(name + ": cannot be listed: Permission denied"));
    EXPECT_EQ(ErrorOf(name, version), name + ": cannot be listed: Permission denied");
    fs::permissions(dir_.path() + "/" + name, fs::perms::owner_all);
  }
  EXPECT_TRUE(registry().Find("m", 1).ok());
  fs::permissions(dir_.path(), fs::perms::none);
  EXPECT_THAT(std::string(load("", 0).message()),
              HasSubstr(dir_.path() + "\" cannot be listed: Permission denied"));
  fs::permissions(dir_.path(), fs::perms::owner_all);
}

TEST_F(ModelRegistryTest, LoadAllKnowsAModelForWhichNoDescriptorIsLeft) {
  WriteModel("m", 1, 1);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  bool fails = false;
  for (rlim_t limit = 0; limit < 256; ++limit) {
    registry_ = nullptr;
    registry();
    const rlimit few = {limit, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const absl::Status listed = registry().LoadAll();
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    if (!listed.ok()) continue;
    if (registry().Find("m", 1).ok()) break;
    fails = true;
    EXPECT_THAT(Known(), ElementsAre(StartsWith("m/"))) << limit;
    EXPECT_THAT(ErrorOf("m"), HasSubstr("Too many open files"));
  }
  EXPECT_TRUE(fails);
  EXPECT_TRUE(registry().Find("m", 1).ok());
}

TEST_F(ModelRegistryTest, AModelWithoutParametersNeedsNoFileOfThem) {
  dir_.Write("m/config.textproto", "instance_norm { channels: 4 }");
  std::filesystem::create_directory(dir_.path() + "/m/1");
  EXPECT_TRUE(registry().Load("m", 0).ok());
  // But one that is there must be right.
  WriteWeights("m", 1, "broken");
  EXPECT_FALSE(registry().Load("m", 0).ok());
}

TEST_F(ModelRegistryTest, FindGivesTheHighestLoadedOrTheNamedVersion) {
  for (const int version : {1, 2, 3}) WriteModel("m", version, static_cast<float>(version));
  ASSERT_TRUE(registry().Load("m", 2).ok());
  ASSERT_TRUE(registry().Load("m", 1).ok());
  EXPECT_EQ((*registry().Find("m", 0))->version(), 2);
  EXPECT_EQ((*registry().Find("m", 1))->version(), 1);
  EXPECT_THAT(Known(), ElementsAre("m/1", "m/2"));
}

TEST_F(ModelRegistryTest, FindPassesOverAFailedHighestVersionUntilItIsUnloaded) {
  WriteModel("m", 1, 1);
  WriteWeights("m", 2, "broken");
  ASSERT_TRUE(registry().Load("m", 1).ok());
  ASSERT_FALSE(registry().Load("m", 2).ok());
  EXPECT_EQ((*registry().Find("m", 0))->version(), 1);
  EXPECT_EQ(registry().Get("m", 0)->version, 2);
  // What is not loaded, it names.
  EXPECT_EQ(registry().Find("other", 0).status(),
            absl::NotFoundError("model: other is not loaded; no version is loaded"));
  EXPECT_EQ(
      registry().Find("m", 7).status(),
      absl::NotFoundError("model: m, version 7 is not loaded; known versions: 1, 2 (failed)"));
  EXPECT_EQ(registry().Find("m", 2).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(*registry().Unload("m", 2), IsEmpty());
  EXPECT_THAT(Known(), ElementsAre("m/1"));
  EXPECT_EQ(changes_.size(), 1u);  // What serves has not changed.
}

TEST_F(ModelRegistryTest, EveryCallRefusesAHostileNameAndANegativeVersion) {
  WriteModel("m", 1, 1);
  dir_.Write("secret/config.textproto", kConfig);
  const auto every_call = [this](const char* name, std::int64_t version) {
    return std::vector<absl::Status>{
        registry().Find(name, version).status(), registry().Get(name, version).status(),
        registry().Load(name, version).status(), registry().Unload(name, version).status()};
  };
  for (const char* name : {"../m", "m/../secret", "", ".", "..", "/m", "m/1", "m\n"}) {
    EXPECT_THAT(every_call(name, 0), Each(ResultOf(absl::IsInvalidArgument, true))) << name;
  }
  EXPECT_THAT(Known(), IsEmpty());
  ASSERT_TRUE(registry().Load("m", 0).ok());
  EXPECT_THAT(every_call("m", -1),
              Each(absl::InvalidArgumentError("version: -1, wanted 0 or more")));
}

TEST_F(ModelRegistryTest, LoadingWhatTheRepositoryDoesNotHoldLeavesNoRecord) {
  WriteModel("m", 1, 1);
  EXPECT_EQ(registry().Load("other", 0).status().code(), absl::StatusCode::kNotFound);
  const absl::Status status = registry().Load("m", 5).status();
  EXPECT_EQ(status, absl::NotFoundError("model m, version 5: the repository holds versions 1"));
  EXPECT_THAT(Known(), IsEmpty());
  EXPECT_THAT(metrics_.Scrape(), Not(HasSubstr("model=\"other\"")));
}

TEST_F(ModelRegistryTest, LoadsNoMoreThanMayBe) {
  max_models_ = 2;
  for (const char* name : {"a", "b", "c"}) WriteModel(name, 1, 1);
  ASSERT_TRUE(registry().LoadAll().ok());
  EXPECT_THAT(Known(), ElementsAre("a/1", "b/1"));
  const absl::Status status = registry().Load("c", 0).status();
  EXPECT_EQ(status, absl::ResourceExhaustedError(
                        "models: 2 are loaded, wanted at most 2 (--max_models); c can be loaded "
                        "when another is unloaded"));
  WriteModel("a", 2, 1);
  EXPECT_EQ(registry().Load("a", 2).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(registry().Load("a", 1).ok());  // Anew.
  EXPECT_THAT(Known(), ElementsAre("a/1", "b/1"));
  ASSERT_TRUE(registry().Unload("b", 0).ok());
  EXPECT_TRUE(registry().Load("c", 0).ok());
  EXPECT_THAT(Known(), ElementsAre("a/1", "c/1"));
}

TEST_F(ModelRegistryTest, RecordsOfFailuresGiveWayAndAreBounded) {
  max_models_ = 3;
  WriteModel("good", 1, 1);
  for (int i = 0; i < 10; ++i) {
    WriteModel(absl::StrCat("bad", i), 1, 1);
    WriteWeights(absl::StrCat("bad", i), 1, "broken");
    EXPECT_FALSE(registry().Load(absl::StrCat("bad", i), 0).ok());
    EXPECT_LE(Known().size(), 3u);
  }
  ASSERT_TRUE(registry().Load("good", 0).ok());
  for (const char* name : {"x", "y"}) {
    WriteModel(name, 1, 1);
    ASSERT_TRUE(registry().Load(name, 0).ok());
  }
  EXPECT_THAT(Known(), ElementsAre("good/1", "x/1", "y/1"));
  // A failure has no room either now, but its caller gets a response, and the rest serves on.
  EXPECT_FALSE(registry().Load("bad0", 0).ok());
  EXPECT_THAT(Known(), ElementsAre("good/1", "x/1", "y/1"));
}

TEST_F(ModelRegistryTest, TheRecordOfNoneWantedNeedsRoomBesideAFailure) {
  max_models_ = 1;
  WriteModel("m", 1, 1);
  WriteWeights("m", 1, "broken");
  ASSERT_FALSE(registry().Load("m", 1).ok());
  EXPECT_THAT(Known(), ElementsAre("m/1!"));
  dir_.Write("m/config.textproto",
             absl::StrCat(kConfig, " version_policy { specific { versions: 7 } }"));
  ASSERT_FALSE(registry().Load("m", 0).ok());
  EXPECT_THAT(Known(), ElementsAre("m/0!"));
}

TEST_F(ModelRegistryTest, LeavesNothingOfNamesThatComeAndGo) {
  max_models_ = 2;
  for (int i = 0; i < 100; ++i) {
    const std::string name = absl::StrCat("m", i);
    WriteModel(name, 1, 1);
    ASSERT_TRUE(registry().Load(name, 0).ok());
    ASSERT_TRUE(registry().Unload(name, 0).ok());
    std::filesystem::remove_all(dir_.path() + "/" + name);
    EXPECT_THAT(Known(), IsEmpty());
  }
}

// Loads and unloads of models that serve: requests in flight, failures, callbacks, threads.

TEST_F(ModelRegistryTest, AReloadSwapsWhileRequestsFinishOnTheOldState) {
  WriteModel("m", 1, 1);
  ASSERT_TRUE(registry().Load("m", 0).ok());
  std::shared_ptr<const Model> in_flight = *registry().Find("m", 0);
  WriteModel("m", 1, 2);
  ASSERT_TRUE(registry().Load("m", 0).ok());
  EXPECT_EQ(FirstWeight(*in_flight), 1);
  EXPECT_EQ(FirstWeight(**registry().Find("m", 0)), 2);
  // With the last request the old state goes.
  const std::weak_ptr<const Model> old = in_flight;
  in_flight.reset();
  EXPECT_TRUE(old.expired());
}

TEST_F(ModelRegistryTest, AnUnloadLeavesRequestsInFlightTheirState) {
  WriteModel("m", 1, 1);
  ASSERT_TRUE(registry().Load("m", 0).ok());
  const std::shared_ptr<const Model> in_flight = *registry().Find("m", 0);
  const auto unloaded = registry().Unload("m", 0);
  ASSERT_TRUE(unloaded.ok()) << unloaded.status();
  EXPECT_THAT(*unloaded, ElementsAre(1));
  EXPECT_EQ(registry().Find("m", 0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(FirstWeight(*in_flight), 1);
  EXPECT_THAT(changes_, ElementsAre(Pair("m", true), Pair("m", false)));
}

TEST_F(ModelRegistryTest, AFailedReloadKeepsWhatServesAndTellsWhy) {
  WriteModel("m", 1, 1);
  ASSERT_TRUE(registry().Load("m", 0).ok());
  WriteWeights("m", 1, "half writ");
  EXPECT_EQ(registry().Load("m", 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FirstWeight(**registry().Find("m", 0)), 1);
  EXPECT_NE(registry().Get("m", 0)->model, nullptr);
  EXPECT_THAT(ErrorOf("m"), HasSubstr("params.safetensors: not a safetensors file"));
  EXPECT_EQ(changes_.size(), 1u);

  WriteModel("m", 1, 2);
  ASSERT_TRUE(registry().Load("m", 0).ok());
  EXPECT_EQ(ErrorOf("m"), "");
}

TEST_F(ModelRegistryTest, AFailingPrepareKeepsTheOldState) {
  WriteModel("m", 1, 1);
  ASSERT_TRUE(registry().Load("m", 0).ok());
  backend_.prepare = [](const Model&) { return absl::ResourceExhaustedError("device: 1 of 2 GB"); };
  WriteModel("m", 1, 2);
  WriteModel("n", 1, 1);
  EXPECT_EQ(registry().Load("m", 0).status(),
            absl::ResourceExhaustedError("model m, version 1: device: 1 of 2 GB"));
  EXPECT_FALSE(registry().Load("n", 0).ok());
  EXPECT_EQ(FirstWeight(**registry().Find("m", 0)), 1);
  EXPECT_THAT(Known(), ElementsAre("m/1", "n/1!"));
}

TEST_F(ModelRegistryTest, AModelThatVanishedFromTheRepositoryServesOn) {
  WriteModel("m", 1, 1);
  ASSERT_TRUE(registry().Load("m", 0).ok());
  std::filesystem::remove_all(dir_.path() + "/m");
  EXPECT_EQ(registry().Load("m", 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(registry().Find("m", 0).ok());
  EXPECT_THAT(ErrorOf("m"), HasSubstr("the repository holds no version"));
}

TEST_F(ModelRegistryTest, GivesTheBackendsStateToTheModelAndMeasuresTheLoad) {
  WriteModel("m", 1, 1);
  const BackendState* made = nullptr;
  backend_.prepare = [&](const Model& model) -> FakeBackend::Prepared {
    EXPECT_EQ(FirstWeight(model), 1);
    clock_.Advance(milliseconds(250));
    auto state = std::make_unique<BackendState>();
    made = state.get();
    return state;
  };
  const auto status = registry().Load("m", 0);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ((*registry().Find("m", 0))->backend_state(), made);
  EXPECT_NE(made, nullptr);
  EXPECT_EQ(status->load_time, milliseconds(250));
  EXPECT_THAT(metrics_.Scrape(),
              HasSubstr("normd_model_load_duration_seconds_sum{model=\"m\"} 0.25\n"));
}

TEST_F(ModelRegistryTest, UnloadsOneVersionOrAll) {
  for (const int version : {1, 2, 3}) {
    WriteModel("m", version, 1);
    ASSERT_TRUE(registry().Load("m", version).ok());
  }
  EXPECT_THAT(*registry().Unload("m", 2), ElementsAre(2));
  EXPECT_THAT(Known(), ElementsAre("m/1", "m/3"));
  EXPECT_EQ(registry().Unload("m", 2).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(*registry().Unload("m", 0), ElementsAre(1, 3));
  EXPECT_THAT(Known(), IsEmpty());
  EXPECT_EQ(registry().Unload("m", 0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(changes_, ElementsAre(Pair("m", true), Pair("m", true), Pair("m", true),
                                    Pair("m", true), Pair("m", false)));
}

TEST_F(ModelRegistryTest, OnChangeMayCallTheRegistry) {
  WriteModel("m", 1, 1);
  WriteModel("n", 1, 1);
  on_change_ = [this] {
    EXPECT_TRUE(registry().Find("m", 0).ok());
    if (changes_.size() == 1) {
      EXPECT_TRUE(registry().Load("n", 0).ok());
    }
  };
  ASSERT_TRUE(registry().Load("m", 0).ok());
  EXPECT_THAT(changes_, ElementsAre(Pair("m", true), Pair("n", true)));
}

TEST_F(ModelRegistryTest, FindAnswersWhileALoadIsInProgress) {
  WriteModel("m", 1, 1);
  ASSERT_TRUE(registry().Load("m", 0).ok());
  // Prepare does not return before another thread has found the old state.
  backend_.prepare = [this](const Model&) {
    std::thread reader([this] {
      const auto found = registry().Find("m", 0);
      EXPECT_TRUE(found.ok() && FirstWeight(**found) == 1);
      EXPECT_EQ(registry().List().size(), 1u);
      EXPECT_TRUE(registry().Get("m", 1).ok());
    });
    reader.join();
    return FakeBackend::Prepared(nullptr);
  };
  WriteModel("m", 1, 2);
  ASSERT_TRUE(registry().Load("m", 0).ok());
  EXPECT_EQ(FirstWeight(**registry().Find("m", 0)), 2);
}

// Each state's four weights are equal, so a mixed one would show.
TEST_F(ModelRegistryTest, ConcurrentFindsSeeWholeStatesDuringReloads) {
  WriteModel("m", 1, 1);
  WriteModel("other", 1, 7);
  ASSERT_TRUE(registry().LoadAll().ok());
  std::atomic<bool> stop{false};
  std::atomic<int> finds{0};
  std::vector<std::thread> readers;
  readers.reserve(3);
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        const auto model = registry().Find("m", 0);
        ASSERT_TRUE(model.ok()) << model.status();
        float weights[4];
        std::memcpy(weights, std::get<NormProgram>((*model)->program()).params.gamma.data,
                    sizeof(weights));
        for (const float weight : weights) ASSERT_EQ(weight, weights[0]);
        ASSERT_TRUE(registry().Find("other", 1).ok());
        ++finds;
      }
    });
  }
  std::thread other([&] {
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(registry().Load("other", 1).ok());
  });
  for (int i = 2; i < 50; ++i) {
    WriteModel("m", 1, static_cast<float>(i));
    EXPECT_TRUE(registry().Load("m", 0).ok());
  }
  other.join();
  WaitUntil([&] { return finds.load() != 0; });
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(FirstWeight(**registry().Find("m", 0)), 49);
  EXPECT_EQ(registry().List().size(), 2u);
}

}  // namespace
}  // namespace normd::testing
