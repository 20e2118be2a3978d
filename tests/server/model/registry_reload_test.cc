// Loads and unloads of models that serve: requests in flight, failures, callbacks, threads.

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "operations/kernel_program.h"
#include "tests/server/model/registry_fixture.h"

namespace normd {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

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

TEST_F(ModelRegistryTest, GivesTheBackendsStateToTheModel) {
  WriteModel("m", 1, 1);
  const BackendState* made = nullptr;
  backend_.prepare = [&made](const Model& model) -> FakeBackend::Prepared {
    EXPECT_EQ(FirstWeight(model), 1);
    auto state = std::make_unique<BackendState>();
    made = state.get();
    return state;
  };
  ASSERT_TRUE(registry().Load("m", 0).ok());
  EXPECT_EQ((*registry().Find("m", 0))->backend_state(), made);
  EXPECT_NE(made, nullptr);
}

TEST_F(ModelRegistryTest, MeasuresTheLoad) {
  WriteModel("m", 1, 1);
  backend_.prepare = [this](const Model&) {
    clock_.Advance(milliseconds(250));
    return FakeBackend::Prepared(nullptr);
  };
  const auto status = registry().Load("m", 0);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->load_time, milliseconds(250));
  EXPECT_THAT(metrics_->Scrape(),
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

TEST_F(ModelRegistryTest, UnloadForgetsFailedVersions) {
  WriteModel("m", 1, 1);
  WriteWeights("m", 2, "broken");
  ASSERT_TRUE(registry().Load("m", 1).ok());
  ASSERT_FALSE(registry().Load("m", 2).ok());
  EXPECT_THAT(*registry().Unload("m", 2), IsEmpty());
  EXPECT_THAT(Known(), ElementsAre("m/1"));
  EXPECT_EQ(changes_.size(), 1u);  // What serves has not changed.
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
  while (finds.load() == 0) std::this_thread::yield();
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(FirstWeight(**registry().Find("m", 0)), 49);
  EXPECT_EQ(registry().List().size(), 2u);
}

}  // namespace
}  // namespace normd
