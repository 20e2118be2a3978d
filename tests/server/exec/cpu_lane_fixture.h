// A lane of the CPU with all that it needs, and requests that go through it.

#ifndef NORMD_TESTS_SERVER_EXEC_CPU_LANE_FIXTURE_H_
#define NORMD_TESTS_SERVER_EXEC_CPU_LANE_FIXTURE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/normalize.h"
#include "server/exec/cpu_lane.h"
#include "tests/support/counting_metrics.h"
#include "tests/support/fake_clock.h"
#include "tests/support/tensor.h"

namespace normd {

// How the inputs of a request lie in memory.
enum class Split { kOnePiece, kMisaligned, kAtSamples, kAnywhere, kSingleBytes };
constexpr Split kSplits[] = {Split::kOnePiece, Split::kMisaligned, Split::kAtSamples,
                             Split::kAnywhere, Split::kSingleBytes};

constexpr norm::DType kDTypes[] = {norm::DType::kFloat32, norm::DType::kFloat64,
                                   norm::DType::kFloat16, norm::DType::kBFloat16};

class CpuLaneFixture : public testing::Test {
 protected:
  static constexpr std::uint64_t kBatchId = 7;

  // Runs the requests as one batch, of the first one's model and type.
  void Run(std::vector<std::unique_ptr<Request>> requests) {
    auto batch = std::make_unique<Batch>();
    batch->id = kBatchId;
    batch->model = requests.front()->model;
    batch->dtype = requests.front()->dtype;
    for (auto& request : requests) batch->requests.push_back(std::move(request));
    EXPECT_TRUE(lane_.Execute(std::move(batch)).ok());
  }
  void Run(std::unique_ptr<Request> request) {
    std::vector<std::unique_ptr<Request>> requests;
    requests.push_back(std::move(request));
    Run(std::move(requests));
  }

  // An output that is expected to have the type and size of `like`.
  static norm::testing::Tensor OutputOf(const Completion& completion, std::size_t index,
                                        const norm::testing::Tensor& like) {
    norm::testing::Tensor tensor(like.dtype(), like.count());
    EXPECT_EQ(completion.status, absl::OkStatus());
    EXPECT_GT(completion.outputs.size(), index);
    if (index >= completion.outputs.size()) return tensor;
    const Buffer& output = completion.outputs[index];
    EXPECT_EQ(output.size(), tensor.bytes());
    if (output.size() == tensor.bytes() && output.size() > 0) {
      std::memcpy(tensor.data(), output.data(), output.size());
    }
    return tensor;
  }

  // A copy of the tensor's bytes whose pieces lie apart.
  ByteViews Lay(const norm::testing::Tensor& tensor, std::size_t sample_bytes, Split split,
                std::vector<std::byte>& memory) {
    const auto* from = static_cast<const std::byte*>(tensor.data());
    const std::size_t size = tensor.bytes();
    memory.assign(3 * size + 64, std::byte{0xff});
    std::byte* to = memory.data() + (split == Split::kMisaligned ? 1 : 0);
    ByteViews views;
    for (std::size_t at = 0; at < size;) {
      std::size_t part = size;
      if (split == Split::kAtSamples) part = sample_bytes * (random_() % 3 + 1);
      if (split == Split::kAnywhere) part = random_() % (2 * sample_bytes) + 1;
      if (split == Split::kSingleBytes) part = 1;
      part = std::min(part, size - at);
      std::memcpy(to, from + at, part);
      views.emplace_back(to, part);
      at += part;
      to += part + (split == Split::kSingleBytes ? 1 : random_() % 3);
    }
    return views;
  }

  TickingClock clock_;
  CountingModelMetrics metrics_;
  CountingLaneMetrics lane_metrics_;
  norm::cpu::Executor kernels_{2};
  BufferPool pool_{std::int64_t{64} << 20};
  CpuLane lane_{"cpu:0", kernels_, pool_, lane_metrics_, clock_};
  std::mt19937_64 random_{norm::testing::TestSeed()};
};

}  // namespace normd

#endif  // NORMD_TESTS_SERVER_EXEC_CPU_LANE_FIXTURE_H_
