#include "server/exec/backends.h"

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/batching/batch_queue.h"
#include "server/exec/executor.h"
#include "server/exec/kernel_status.h"
#include "server/metrics/metrics.h"
#include "tests/support/models.h"
#include "tests/support/request_probe.h"
#include "tests/support/tensor.h"
#include "tests/support/threads.h"

namespace normd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;

class BackendTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Backend>> Create(const std::string& device, int cpu_lanes = 1) {
    BackendOptions options;
    options.device = device;
    options.cpu_lanes = cpu_lanes;
    // Lanes run at once, but each computes alone: oneTBB is not built for ThreadSanitizer.
    options.cpu_threads = 1;
    return CreateBackend(options, metrics_, clock_);
  }

  SteadyClock clock_;
  Metrics metrics_;
};

TEST_F(BackendTest, TheCpuBackendMakesItsLanes) {
  const auto backend = Create("cpu", 2);
  ASSERT_TRUE(backend.ok()) << backend.status();
  EXPECT_THAT((*backend)->Description(), MatchesRegex("cpu, 1 thread, .+"));
  const auto lanes = (*backend)->MakeLanes();
  ASSERT_EQ(lanes.size(), 2U);
  EXPECT_EQ(lanes[0]->name(), "cpu:0");
  EXPECT_EQ(lanes[1]->name(), "cpu:1");
  EXPECT_EQ(lanes[0]->device(), "cpu");
}

TEST_F(BackendTest, AutoAlwaysFindsADevice) { EXPECT_TRUE(Create("auto").ok()); }

TEST_F(BackendTest, ADeviceThatIsNotHereIsFailedPrecondition) {
  const absl::Status status = Create("cuda:9999").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("device \"cuda:9999\": "));
}

TEST_F(BackendTest, ADeviceThatCannotBeParsedIsInvalidArgument) {
  EXPECT_TRUE(absl::IsInvalidArgument(Create("tpu").status()));
}

// Threads that push requests of mixed samples and spatial sizes; batches form as they may.
TEST_F(BackendTest, ConcurrentRequestsGiveTheBitsThatEachGivesAlone) {
  constexpr int kThreads = 4;
  constexpr int kRequests = 250;  // Per thread.
  auto backend = *Create("cpu", 2);
  const auto model = MakeModel("group", "group_norm { channels: 8 groups: 2 affine: false }",
                               metrics_.ForNoModel());
  const_cast<Model&>(*model).set_backend_state(*backend->Prepare(*model));
  BatchQueue queue({}, clock_);
  Executor executor(backend->MakeLanes(), queue);
  executor.Start([](const absl::Status& error) { ADD_FAILURE() << error; });

  struct Sent {
    std::unique_ptr<RequestProbe> probe;
    std::vector<std::int64_t> dims;
    std::vector<std::byte> input;
  };
  const auto send = [&](Sent& sent) {
    sent.probe =
        std::make_unique<RequestProbe>(model, sent.dims, norm::DType::kFloat32, sent.input);
    EXPECT_TRUE(queue.Push(sent.probe->request()).ok());
  };
  std::vector<std::vector<Sent>> sent(kThreads);
  RunThreads(kThreads, [&](int t) {
    std::mt19937_64 random(norm::testing::TestSeed() + static_cast<std::uint64_t>(t));
    for (int i = 0; i < kRequests; ++i) {
      const auto samples = static_cast<std::int64_t>(random() % 3);
      const auto spatial = static_cast<std::int64_t>(1 + random() % 200);
      norm::testing::Tensor x(norm::DType::kFloat32, samples * 8 * spatial);
      x.Fill(norm::testing::Data::kNormal, random());
      const auto* data = static_cast<const std::byte*>(x.data());
      Sent& one = sent[static_cast<std::size_t>(t)].emplace_back();
      one.dims = {samples, 8, spatial};
      one.input.assign(data, data + x.bytes());
      send(one);
    }
  });
  for (const std::vector<Sent>& of_thread : sent) {
    for (const Sent& one : of_thread) one.probe->Wait();
  }
  for (const std::vector<Sent>& of_thread : sent) {
    for (const Sent& one : of_thread) {
      Sent alone{nullptr, one.dims, one.input};
      send(alone);
      alone.probe->Wait();
      const Completion& a = one.probe->completion();
      const Completion& b = alone.probe->completion();
      ASSERT_EQ(a.status, absl::OkStatus());
      ASSERT_EQ(b.status, absl::OkStatus());
      EXPECT_EQ(b.batch.requests, 1);
      ASSERT_EQ(a.outputs[0].size(), one.input.size());
      EXPECT_TRUE(a.outputs[0].size() == 0 ||
                  std::memcmp(a.outputs[0].data(), b.outputs[0].data(), a.outputs[0].size()) == 0);
    }
  }
  queue.Close();
  executor.Join();
}

TEST(ParseDeviceTest, KnowsTheKinds) {
  EXPECT_EQ(ParseDevice("auto")->kind, DeviceSpec::Kind::kAuto);
  EXPECT_EQ(ParseDevice("cpu")->kind, DeviceSpec::Kind::kCpu);
  EXPECT_EQ(ParseDevice("cuda")->kind, DeviceSpec::Kind::kCuda);
  EXPECT_THAT(ParseDevice("cuda")->ordinals, IsEmpty());
}

TEST(ParseDeviceTest, ReadsOrdinals) {
  EXPECT_THAT(ParseDevice("cuda:0")->ordinals, ElementsAre(0));
  EXPECT_THAT(ParseDevice("cuda:3,0,12")->ordinals, ElementsAre(3, 0, 12));
}

class ParseDeviceErrorTest : public testing::TestWithParam<const char*> {};

TEST_P(ParseDeviceErrorTest, NamesWhatCameAndWhatWasWanted) {
  const absl::Status status = ParseDevice(GetParam()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("\"") + GetParam() + "\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("wanted auto, cpu, cuda or cuda:0,1"));
}

INSTANTIATE_TEST_SUITE_P(Table, ParseDeviceErrorTest,
                         testing::Values("", "gpu", "CPU", "cpu:0", "auto ", "cuda:", "cuda:a",
                                         "cuda:-1", "cuda:+1", "cuda: 1", "cuda:0,", "cuda:,0",
                                         "cuda:0,0", "cuda:99999999999"));

TEST(FromKernelTest, MapsEachCodeAndKeepsTheMessage) {
  EXPECT_TRUE(FromKernel(norm::Status()).ok());
  const auto code = [](norm::StatusCode kernel) {
    const absl::Status status = FromKernel(norm::Status(kernel, "x: 3, wanted 4"));
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("x: 3, wanted 4"));
    return status.code();
  };
  EXPECT_EQ(code(norm::StatusCode::kInvalidArgument), absl::StatusCode::kInternal);
  EXPECT_EQ(code(norm::StatusCode::kUnsupported), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(norm::StatusCode::kOutOfMemory), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(norm::StatusCode::kDeviceError), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace normd
