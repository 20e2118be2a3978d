// The CPU's lane on operations with two inputs of a size: a norm with a residual and two outputs,
// and a fused layer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "operations/kernel_program.h"
#include "server/batching/batch_queue.h"
#include "tests/server/exec/cpu_lane_fixture.h"
#include "tests/support/mix_operation.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

using norm::DType;
using norm::testing::Data;
using norm::testing::kFloatTypes;
using norm::testing::Tensor;
using ::testing::HasSubstr;

constexpr std::int64_t kLength = 19;

class CpuResidualTest : public CpuLaneFixture {
 protected:
  CpuResidualTest() { LoadSum(kLength); }

  void LoadSum(std::int64_t length) {
    model_ = Load(
        absl::StrCat("add_rms_norm { normalized_shape: ", length, " eps: 1e-6 } activation: SILU"),
        {{"weight", {length}}});
  }

  // Sums of the 16-bit types may overflow in their squares.
  LaneRequest Make(DType dtype, std::int64_t samples, Split x = Split::kOnePiece,
                   Split residual = Split::kOnePiece, std::int64_t length = kLength) {
    LaneRequest request(model_, {{samples, length}, {samples, length}}, dtype);
    request.input(1).Fill(Data::kHalfOverflow, norm::testing::TestSeed() + 1);
    request.Lay({x, residual});
    return request;
  }

  std::shared_ptr<const Model> model_;
};

// More than is gathered between two calls of the kernels, on several threads.
TEST_F(CpuResidualTest, LongRowsThatAreCutKeepTheirBits) {
  constexpr std::int64_t kLong = 200'003;
  LoadSum(kLong);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    LaneRequest whole = Make(dtype, 7, Split::kOnePiece, Split::kOnePiece, kLong);
    Run({&whole});
    EXPECT_EQ(Wrong(whole), "");
    for (const auto& [x, residual] : {std::pair(Split::kAnywhere, Split::kAnywhere),
                                      std::pair(Split::kMisaligned, Split::kAnywhere),
                                      std::pair(Split::kAnywhere, Split::kAtSamples)}) {
      LaneRequest request = Make(dtype, 7, x, residual, kLong);
      Run({&request});
      EXPECT_EQ(request.Differs(whole), "");
    }
  }
}

// Where the memory of an output may lie.
enum class Where { kPool, kOwn, kInput };

TEST_F(CpuResidualTest, WritesToTheMemoryThatTheRequestNamesAlsoOverItsInputs) {
  constexpr Where kPlaces[] = {Where::kPool, Where::kOwn, Where::kInput};
  for (const DType dtype : kFloatTypes) {
    for (int way = 0; way < 2 * 3 * 3; ++way) {
      SCOPED_TRACE(absl::StrCat(norm::Name(dtype), " ", way));
      const Split split = way < 9 ? Split::kOnePiece : Split::kAnywhere;
      LaneRequest request = Make(dtype, 4, split, split);
      std::vector<Tensor> named;
      for (std::size_t i = 0; i < 2; ++i) {
        const Where where = kPlaces[i == 0 ? way / 3 % 3 : way % 3];
        Tensor& memory = named.emplace_back(dtype, 4 * kLength);
        memory.Poison();
        if (where == Where::kInput) {
          memory.CopyFrom(request.input(i));
          request.request()->inputs[i].views = {
              ConstBytes(static_cast<const std::byte*>(memory.data()), memory.bytes())};
        }
        if (where != Where::kPool) request.NameOutput(i, memory);
      }
      Run({&request});
      EXPECT_EQ(Wrong(request), "");
      EXPECT_TRUE(named[0].GuardsIntact() && named[1].GuardsIntact());
    }
  }
}

// What is gathered goes to the outputs, so a request that names them takes no other memory.
TEST_F(CpuResidualTest, NeedsNoMemoryBesideTheOutputs) {
  LaneRequest request = Make(DType::kFloat32, 40, Split::kAnywhere, Split::kMisaligned);
  Tensor y(DType::kFloat32, 40 * kLength);
  Tensor sum(DType::kFloat32, 40 * kLength);
  request.NameOutput(0, y);
  request.NameOutput(1, sum);
  Run({&request});
  EXPECT_EQ(Wrong(request), "");
  EXPECT_EQ(pool_.free_bytes() + pool_.used_bytes(), 0);
}

class CpuLinearTest : public CpuLaneFixture {
 protected:
  static constexpr std::int64_t kIn = 19;
  static constexpr std::int64_t kOut = 37;

  std::shared_ptr<const Model> model_ =
      Load("linear_norm { in_features: 19 out_features: 37 epilogue { add: true multiply: true } }",
           {{"linear.weight", {kOut, kIn}}, {"linear.bias", {kOut}}});
};

TEST_F(CpuLinearTest, WritesToTheMemoryThatTheRequestNamesAlsoOverItsOwnY) {
  LaneRequest request(model_, {{4, kIn}, {4, kOut}});
  Tensor out(DType::kFloat32, 4 * kOut);
  out.CopyFrom(request.input(1));
  request.request()->inputs[1].views = {
      ConstBytes(static_cast<const std::byte*>(out.data()), out.bytes())};
  request.NameOutput(0, out);
  Run({&request});
  LaneRequest again(model_, {{4, kIn}, {4, kOut}});
  Run({&again});
  EXPECT_EQ(request.Differs(again), "");
  EXPECT_EQ(Wrong(again), "");
}

TEST_F(CpuResidualTest, ARequestWithoutItsResidualFailsAlone) {
  LaneRequest bad = Make(DType::kFloat32, 2);
  LaneRequest good = Make(DType::kFloat32, 2, Split::kAnywhere);
  bad.request()->inputs.pop_back();
  Run({&bad, &good});
  EXPECT_EQ(bad.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(bad.completion().status.message()),
              HasSubstr("inputs[1]: 0 bytes, wanted the tensor's 152"));
  EXPECT_EQ(Wrong(good), "");
}

// Requests with several inputs and outputs of different types on the CPU, from the queue to `done`.

constexpr MemoryPlace kHostPlaces[] = {{MemoryKind::kHost}, {MemoryKind::kPinned}};

class MixTest : public CpuLaneFixture {
 protected:
  std::shared_ptr<const Model> LoadMix(bool overwrites) {
    std::shared_ptr<Model> model = MakeMixModel(metrics_);
    model->set_backend_state(MakeCpuMix(overwrites));
    return model;
  }
  // Any layout that the CPU takes.
  MixRequest::Layouts AnyLayouts() {
    MixRequest::Layouts layouts;
    for (MixLayout& input : layouts.inputs) {
      input = {kHostPlaces[random_() % 2], random_() % 2 == 0};
    }
    for (std::size_t o = 0; o < 2; ++o) {
      layouts.named[o] = random_() % 2 == 0;
      layouts.outputs[o] = kHostPlaces[random_() % 2];
    }
    return layouts;
  }
};

TEST_F(MixTest, TensorsOfEveryLayoutAndSizeTravelThroughQueueAndLane) {
  for (const bool overwrites : {false, true}) {
    const auto model = LoadMix(overwrites);
    BatchQueue queue({}, clock_);
    std::deque<MixRequest> requests;
    for (int i = 0; i < 300; ++i) {
      const auto samples = static_cast<std::int64_t>(random_() % 40);
      MixRequest& request = requests.emplace_back(model, static_cast<std::uint64_t>(i + 1), samples,
                                                  AnyLayouts(), random_);
      ASSERT_TRUE(queue.Push(request.request()).ok());
      if (random_() % 4 != 0) continue;
      std::unique_ptr<Batch> batch = queue.TryTake().batch;
      ASSERT_NE(batch, nullptr);
      ASSERT_TRUE(lane_.Execute(std::move(batch)).ok());
    }
    while (std::unique_ptr<Batch> batch = queue.TryTake().batch) {
      ASSERT_TRUE(lane_.Execute(std::move(batch)).ok());
    }
    for (const MixRequest& request : requests) {
      EXPECT_EQ(request.Wrong(), "");
      EXPECT_TRUE(request.InputsIntact());
    }
    queue.Close();
  }
}

TEST_F(MixTest, MemoryOfADeviceIsRefusedByNameAndNobodyElseSuffers) {
  const auto model = LoadMix(true);
  for (std::size_t tensor = 0; tensor < 5; ++tensor) {
    MixRequest::Layouts layouts;
    const MemoryPlace device = {MemoryKind::kDevice, 1};
    if (tensor < 3) {
      layouts.inputs[tensor].place = device;
    } else {
      layouts.named[tensor - 3] = true;
      layouts.outputs[tensor - 3] = device;
    }
    MixRequest before(model, 1, 4, {}, random_);
    MixRequest refused(model, 2, 4, layouts, random_);
    MixRequest after(model, 3, 4, {}, random_);
    auto batch = std::make_unique<Batch>();
    batch->model = model;
    for (MixRequest* request : {&before, &refused, &after}) {
      batch->requests.push_back(std::move(request->request()));
    }
    Run(std::move(batch));
    EXPECT_EQ(before.Wrong(), "");
    EXPECT_EQ(after.Wrong(), "");
    ASSERT_EQ(refused.done_calls(), 1);
    const std::string name = tensor < 3 ? "inputs[" + std::to_string(tensor) + "]"
                                        : "outputs[" + std::to_string(tensor - 3) + "]";
    EXPECT_EQ(refused.completion().status,
              absl::InvalidArgumentError(
                  name + ": lies in memory of device 1, wanted host or pinned memory"));
  }
}

}  // namespace
}  // namespace normd
