// Lanes on a real device: every path of a batch against float64, and the same bits in every
// company.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/reference.h"
#include "operations/kernel_program.h"
#include "server/batching/batch_queue.h"
#include "server/exec/executor.h"
#include "tests/server/exec/cuda/cuda_fixture.h"
#include "tests/support/request_probe.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

using norm::DType;
using ::testing::HasSubstr;

struct Input {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  norm::testing::Tensor tensor;
};

Input MakeInput(DType dtype, const std::string& layout, std::int64_t samples, std::int64_t spatial,
                std::uint64_t seed) {
  norm::testing::Tensor tensor(dtype, samples * 12 * spatial);
  tensor.Fill(norm::testing::Data::kNormal, seed);
  std::vector<std::int64_t> shape = layout == "CHANNELS_LAST"
                                        ? std::vector<std::int64_t>{samples, spatial, 12}
                                        : std::vector<std::int64_t>{samples, 12, spatial};
  return {dtype, std::move(shape), std::move(tensor)};
}

std::unique_ptr<RequestProbe> Probe(const std::shared_ptr<const Model>& model, const Input& input) {
  const auto* bytes = static_cast<const std::byte*>(input.tensor.data());
  return std::make_unique<RequestProbe>(
      model, input.shape, input.dtype, std::vector<std::byte>(bytes, bytes + input.tensor.bytes()));
}

void Execute(Lane& lane, const std::shared_ptr<const Model>& model,
             std::vector<std::unique_ptr<RequestProbe>>& probes) {
  auto batch = std::make_unique<Batch>();
  batch->model = model;
  batch->dtype = probes.front()->request()->dtype;
  for (auto& probe : probes) batch->requests.push_back(std::move(probe->request()));
  const absl::Status status = lane.Execute(std::move(batch));
  ASSERT_TRUE(status.ok()) << status;
}

std::vector<std::byte> Output(const RequestProbe& probe) {
  const Buffer& output = probe.completion().outputs[0];
  return {output.data(), output.data() + output.size()};
}

double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return 2e-5;
    case DType::kFloat64: return 1e-11;
    case DType::kFloat16: return std::ldexp(1, -10);
    case DType::kBFloat16: return std::ldexp(1, -7);
    default: return 0;
  }
}

void ExpectRight(const Model& model, const Input& input, const RequestProbe& probe) {
  ASSERT_TRUE(probe.completion().status.ok()) << probe.completion().status;
  ASSERT_EQ(probe.completion().outputs[0].size(), input.tensor.bytes());
  const Geometry geometry = *model.Check(input.dtype, *Shape::Create(input.shape));
  std::vector<double> expected(static_cast<std::size_t>(input.tensor.count()));
  ASSERT_TRUE(
      norm::NormalizeReference(std::get<NormProgram>(model.program()).Spec(input.dtype),
                               std::get<NormProgram>(model.program()).params,
                               {input.tensor.data(), nullptr, geometry.samples, geometry.spatial},
                               expected.data())
          .ok());
  for (std::int64_t i = 0; i < input.tensor.count(); ++i) {
    const double wanted = expected[static_cast<std::size_t>(i)];
    const double got = norm::LoadElement(input.dtype, probe.completion().outputs[0].data(), i);
    ASSERT_LE(std::abs(got - wanted), Tolerance(input.dtype) * std::max(1.0, std::abs(wanted)))
        << "element " << i << ": " << got << ", wanted " << wanted;
  }
}

// Small enough that a tensor of a megabyte goes through every mechanism.
DeviceBackendOptions SmallLanes() {
  DeviceBackendOptions options;
  options.lanes_per_device = 3;
  options.pool_bytes = 64 << 20;
  options.lane.arena_bytes = 16 << 20;
  options.lane.chunk_bytes = 100'000;
  options.lane.piece_bytes = 300'000;
  return options;
}

class CudaLaneTest : public CudaFixture {};

TEST_F(CudaLaneTest, EveryPathMatchesFloat64) {
  Start(SmallLanes());
  std::uint64_t seed = norm::testing::TestSeed();
  for (const std::string layout : {"CHANNELS_FIRST", "CHANNELS_LAST"}) {
    const std::shared_ptr<const Model> model = MakeGroupNorm(layout);
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
      for (const std::int64_t spatial : {1, 7, 1000, 40'000}) {
        SCOPED_TRACE(layout + " " + norm::Name(dtype) + " " + std::to_string(spatial));
        std::vector<Input> inputs;
        std::vector<std::unique_ptr<RequestProbe>> probes;
        for (const std::int64_t samples : {1, 3, 0, 2}) {
          inputs.push_back(MakeInput(dtype, layout, samples, spatial, ++seed));
          probes.push_back(Probe(model, inputs.back()));
        }
        Execute(*lanes_[0], model, probes);
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          ExpectRight(*model, inputs[i], *probes[i]);
        }
      }
    }
  }
}

TEST_F(CudaLaneTest, ARequestsBitsDependOnNeitherItsCompanyNorTheLane) {
  Start(SmallLanes());
  const std::shared_ptr<const Model> model = MakeGroupNorm("CHANNELS_FIRST");
  std::mt19937_64 random(norm::testing::TestSeed());
  std::vector<Input> inputs;
  std::vector<std::vector<std::byte>> alone;
  for (int i = 0; i < 60; ++i) {
    const auto spatial = static_cast<std::int64_t>(random() % (i % 7 == 0 ? 30'000 : 900) + 1);
    inputs.push_back(MakeInput(DType::kFloat32, "CHANNELS_FIRST",
                               static_cast<std::int64_t>(random() % 4 + 1), spatial, random()));
    std::vector<std::unique_ptr<RequestProbe>> probe;
    probe.push_back(Probe(model, inputs.back()));
    Execute(*lanes_[0], model, probe);
    alone.push_back(Output(*probe[0]));
  }

  BatchQueueOptions options;
  BatchQueue queue(options, clock_);
  Executor executor(std::move(lanes_), queue);
  executor.Start([&queue](const absl::Status& status) {
    queue.Close();
    queue.Abort(status);
  });
  for (int round = 0; round < 20; ++round) {
    std::vector<std::unique_ptr<RequestProbe>> probes;
    for (const Input& input : inputs) {
      probes.push_back(Probe(model, input));
      if (!queue.Push(probes.back()->request()).ok()) probes.pop_back();
    }
    EXPECT_EQ(probes.size(), inputs.size()) << "round " << round;
    for (std::size_t i = 0; i < probes.size(); ++i) {
      probes[i]->Wait();
      EXPECT_EQ(probes[i]->code(), absl::StatusCode::kOk) << probes[i]->completion().status;
      EXPECT_TRUE(Output(*probes[i]) == alone[i]) << "request " << i << ", round " << round;
    }
    if (HasFailure()) break;
  }
  queue.Close();
  executor.Join();
}

struct Fault {
  DeviceCall call;
  int nth;
};

class CudaLaneFaultTest : public CudaLaneTest, public ::testing::WithParamInterface<Fault> {};

// While copies and kernels of the batch's other pieces are under way.
TEST_P(CudaLaneFaultTest, EndsTheBatchWithInternalAndHurtsNoOtherLane) {
  Start(SmallLanes());
  const std::shared_ptr<const Model> model = MakeGroupNorm("CHANNELS_FIRST");
  const Input input = MakeInput(DType::kFloat32, "CHANNELS_FIRST", 20, 4001, 3);
  for (const bool faulty : {true, false, false}) {
    if (faulty) {
      device_->FailCall(GetParam().call, GetParam().nth, absl::InternalError("injected"));
    }
    auto batch = std::make_unique<Batch>();
    batch->model = model;
    std::vector<std::unique_ptr<RequestProbe>> probes;
    for (int i = 0; i < 3; ++i) {
      probes.push_back(Probe(model, input));
      batch->requests.push_back(std::move(probes.back()->request()));
    }
    const absl::Status status = lanes_[faulty ? 0 : 1]->Execute(std::move(batch));
    EXPECT_EQ(status.code(), faulty ? absl::StatusCode::kInternal : absl::StatusCode::kOk);
    for (const auto& probe : probes) {
      if (faulty) {
        EXPECT_EQ(probe->code(), absl::StatusCode::kInternal);
        EXPECT_THAT(std::string(probe->completion().status.message()), HasSubstr("injected"));
      } else {
        ExpectRight(*model, input, *probe);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Faults, CudaLaneFaultTest,
    ::testing::Values(Fault{DeviceCall::kCopyIn, 9}, Fault{DeviceCall::kNormalize, 5},
                      Fault{DeviceCall::kCopyOut, 4}, Fault{DeviceCall::kAddMark, 20},
                      Fault{DeviceCall::kAwait, 7}, Fault{DeviceCall::kAddPoint, 11},
                      Fault{DeviceCall::kWait, 1}));

TEST_F(CudaLaneTest, AModelsMemoryComesBackWithIt) {
  Start(SmallLanes());
  const auto free_bytes = [this] { return device_->MemoryInfo()->free_bytes; };
  const std::int64_t before = free_bytes();
  std::shared_ptr<const Model> model =
      MakeModel("wide", "rms_norm { normalized_shape: 8000000 }", metrics_->ForModel("wide", 1),
                {MakeParameter("weight", std::vector<float>(8'000'000, 1.0f))});
  const_cast<Model&>(*model).set_backend_state(*backend_->Prepare(*model));
  EXPECT_LE(free_bytes(), before - 32'000'000);
  model.reset();
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(CudaLaneTest, AModelThatDoesNotFitFailsItsLoadWithTheNumbers) {
  Start(SmallLanes());
  const Buffer most =
      *device_->Allocate(MemoryKind::kDevice,
                         static_cast<std::size_t>(device_->MemoryInfo()->free_bytes) - (64 << 20));
  const std::shared_ptr<const Model> model =
      MakeModel("wide", "rms_norm { normalized_shape: 40000000 }", metrics_->ForModel("wide", 1),
                {MakeParameter("weight", std::vector<float>(40'000'000, 1.0f))});
  const auto state = backend_->Prepare(*model);
  EXPECT_EQ(state.status().code(), absl::StatusCode::kResourceExhausted) << state.status();
  EXPECT_THAT(std::string(state.status().message()), HasSubstr("wanted 160000000 bytes, free "));
}

TEST_F(CudaLaneTest, MemoryThatIsNotThereIsRefusedWithTheNumbersAndHurtsNobody) {
  Start(SmallLanes());
  const absl::StatusOr<Buffer> memory =
      device_->Allocate(MemoryKind::kDevice, std::size_t{1} << 50);
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.status().message()), HasSubstr("free"));
  EXPECT_TRUE(device_->usable());
  const std::shared_ptr<const Model> model = MakeGroupNorm("CHANNELS_FIRST");
  const Input input = MakeInput(DType::kFloat32, "CHANNELS_FIRST", 1, 9, 1);
  std::vector<std::unique_ptr<RequestProbe>> probe;
  probe.push_back(Probe(model, input));
  Execute(*lanes_[0], model, probe);
  ExpectRight(*model, input, *probe[0]);
}

}  // namespace
}  // namespace normd
