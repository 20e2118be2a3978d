// A program of its own: it loses its CUDA context, and with it the device for the whole process.

#include <gtest/gtest.h>

#include <utility>
#include <variant>

#include "operations/kernel_program.h"
#include "tests/server/exec/cuda/cuda_fixture.h"
#include "tests/support/request_probe.h"

namespace normd {
namespace {

class CudaFaultTest : public CudaFixture {};

TEST_F(CudaFaultTest, ALostContextEndsBatchesWithInternalAndRetiresEveryLane) {
  DeviceBackendOptions options;
  options.lanes_per_device = 2;
  options.pool_bytes = 1 << 20;
  Start(options);
  const std::shared_ptr<const Model> model = MakeGroupNorm("CHANNELS_FIRST");

  // A kernel that reads parameters from where no memory is.
  const auto stream = *device_->CreateStream(4096);
  const Buffer memory = *device_->Allocate(MemoryKind::kDevice, 4096);
  const NormProgram& program = std::get<NormProgram>(model->program());
  norm::NormParams params = program.params;
  params.gamma.data = reinterpret_cast<const void*>(std::uintptr_t{1} << 60);
  params.beta.data = nullptr;
  auto* rows = const_cast<std::byte*>(memory.data());
  const norm::Segment segment{rows, rows, 1, 4};
  absl::Status status = stream->Normalize(program.Spec(norm::DType::kFloat32), params, &segment, 1);
  if (status.ok()) status = stream->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_FALSE(device_->usable());

  for (const std::unique_ptr<Lane>& lane : lanes_) {
    RequestProbe probe(model, {1, 12, 5});
    auto batch = std::make_unique<Batch>();
    batch->model = model;
    batch->requests.push_back(std::move(probe.request()));
    EXPECT_EQ(lane->Execute(std::move(batch)).code(), absl::StatusCode::kInternal);
    EXPECT_EQ(probe.done_calls(), 1);
    EXPECT_EQ(probe.code(), absl::StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace normd
