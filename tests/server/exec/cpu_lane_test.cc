#include "server/exec/cpu_lane.h"
#include "operations/kernel_program.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference.h"
#include "tests/server/exec/cpu_lane_fixture.h"
#include "tests/support/models.h"
#include "tests/support/request_probe.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

using norm::testing::Data;
using norm::testing::Tensor;
using testing::HasSubstr;

std::vector<float> Ramp(std::int64_t count, float first, float step) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(first + step * static_cast<float>(i));
  return values;
}

Tensor RandomTensor(norm::DType dtype, std::int64_t count, std::uint64_t salt) {
  Tensor tensor(dtype, count);
  tensor.Fill(Data::kNormal, norm::testing::TestSeed() + salt);
  return tensor;
}

std::vector<std::byte> BytesOf(const Tensor& tensor) {
  const auto* data = static_cast<const std::byte*>(tensor.data());
  return {data, data + tensor.bytes()};
}

// How a request's input lies in memory.
enum class LaneSplit { kOnePiece, kMisaligned, kAdjacent, kOddPieces, kSingleBytesAndEmpty };

std::vector<std::size_t> Cuts(LaneSplit split, std::size_t size) {
  switch (split) {
    case LaneSplit::kOnePiece:
    case LaneSplit::kMisaligned: return {};
    case LaneSplit::kAdjacent: return {size / 3};
    case LaneSplit::kOddPieces: return {1, 4, 4, size / 2 + 1, size - 3};
    case LaneSplit::kSingleBytesAndEmpty: {
      std::vector<std::size_t> cuts;
      for (std::size_t i = 0; i < std::min<std::size_t>(size, 40); ++i) cuts.push_back(i);
      return cuts;
    }
  }
  return {};
}

// Lays `bytes` out anew as `split` says. Pieces lie apart, but for kAdjacent.
void SplitInput(Request& request, const std::vector<std::byte>& bytes, LaneSplit split) {
  const std::size_t size = bytes.size();
  auto memory = std::make_shared<std::vector<std::byte>>(2 * size + 4096);
  request.inputs.resize(1);
  request.inputs[0].views.clear();
  std::byte* to = memory->data() + (split == LaneSplit::kMisaligned ? 1 : 0);
  std::size_t from = 0;
  std::vector<std::size_t> cuts = Cuts(split, size);
  cuts.push_back(size);
  for (const std::size_t cut : cuts) {
    const std::size_t end = std::max(from, std::min(cut, size));
    if (end > from) std::memcpy(to, bytes.data() + from, end - from);
    request.inputs[0].views.emplace_back(to, end - from);
    to += end - from;
    if (split != LaneSplit::kAdjacent) to += 1 + end % 5;
    from = end;
  }
  request.input_owner = std::move(memory);
}

class CpuLaneTest : public CpuLaneFixture {
 protected:
  std::unique_ptr<RequestProbe> Make(const std::shared_ptr<const Model>& model,
                                     const std::vector<std::int64_t>& dims, const Tensor& x,
                                     LaneSplit split = LaneSplit::kOnePiece) {
    auto probe = std::make_unique<RequestProbe>(model, dims, x.dtype());
    SplitInput(*probe->request(), BytesOf(x), split);
    return probe;
  }
  std::shared_ptr<const Model> Load(const std::string& name, const std::string& config,
                                    ModelMetrics& metrics, std::vector<Parameter> parameters) {
    return OnCpu(MakeModel(name, config, metrics, std::move(parameters)), kernels_);
  }
  // Runs the probes' requests as one batch.
  void Run(const std::vector<RequestProbe*>& probes) {
    std::vector<std::unique_ptr<Request>> requests;
    for (RequestProbe* probe : probes) requests.push_back(std::move(probe->request()));
    CpuLaneFixture::Run(std::move(requests));
    for (RequestProbe* probe : probes) EXPECT_EQ(probe->done_calls(), 1);
  }
  static Tensor OutputOf(const RequestProbe& probe, const Tensor& like) {
    return CpuLaneFixture::OutputOf(probe.completion(), 0, like);
  }
  static std::string CompareToReference(const Model& model, const Tensor& x, const Tensor& y,
                                        std::int64_t samples, std::int64_t spatial) {
    std::vector<double> expected(static_cast<std::size_t>(x.count()));
    const auto& program = std::get<NormProgram>(model.program());
    const norm::Status status =
        norm::NormalizeReference(program.Spec(x.dtype()), program.params,
                                 {x.data(), nullptr, samples, spatial}, expected.data());
    if (!status.ok()) return status.message();
    return norm::testing::Compare(y, expected, norm::testing::TightTolerance(x.dtype()));
  }

  // Seven channels: sizes that no vector width divides.
  std::shared_ptr<const Model> model_ = Load(
      "instance", "instance_norm { channels: 7 affine: true }", metrics_,
      {MakeParameter("weight", Ramp(7, 0.5F, 0.25F)), MakeParameter("bias", Ramp(7, -1.0F, 0.5F))});
};

class CpuLaneSplitTest : public CpuLaneTest,
                         public testing::WithParamInterface<std::tuple<norm::DType, LaneSplit>> {};

TEST_P(CpuLaneSplitTest, ComputesTheReferencesResult) {
  const auto [dtype, split] = GetParam();
  const Tensor x = RandomTensor(dtype, 2 * 7 * 33, 1);
  const auto probe = Make(model_, {2, 7, 33}, x, split);
  Run({probe.get()});
  EXPECT_EQ(CompareToReference(*model_, x, OutputOf(*probe, x), 2, 33), "");
}

INSTANTIATE_TEST_SUITE_P(
    TypesAndSplits, CpuLaneSplitTest,
    testing::Combine(testing::Values(norm::DType::kFloat32, norm::DType::kFloat64,
                                     norm::DType::kFloat16, norm::DType::kBFloat16),
                     testing::Values(LaneSplit::kOnePiece, LaneSplit::kMisaligned,
                                     LaneSplit::kAdjacent, LaneSplit::kOddPieces,
                                     LaneSplit::kSingleBytesAndEmpty)));

TEST_F(CpuLaneTest, ComputesEveryOperation) {
  const auto weight = [](std::int64_t n) { return MakeParameter("weight", Ramp(n, 0.5F, 0.1F)); };
  const auto bias = [](std::int64_t n) { return MakeParameter("bias", Ramp(n, -1.0F, 0.2F)); };
  const std::vector<std::shared_ptr<const Model>> models = {
      Load("group", "group_norm { channels: 6 groups: 2 } activation: SILU", metrics_,
           {weight(6), bias(6)}),
      Load("layer", "layer_norm { normalized_shape: [6, 10] }", metrics_, {[] {
             Parameter p = MakeParameter("weight", Ramp(60, 0.5F, 0.1F));
             p.shape = *Shape::Create({6, 10});
             return p;
           }()}),
      Load("batch", "batch_norm { channels: 6 }", metrics_,
           {weight(6), bias(6), MakeParameter("running_mean", Ramp(6, 0.0F, 0.1F)),
            MakeParameter("running_var", Ramp(6, 1.0F, 0.1F))})};
  for (const auto& model : models) {
    SCOPED_TRACE(model->name());
    const Tensor x = RandomTensor(norm::DType::kFloat32, 3 * 6 * 10, 2);
    const auto probe = Make(model, {3, 6, 10}, x, LaneSplit::kOddPieces);
    const Geometry geometry = probe->request()->geometry;
    Run({probe.get()});
    EXPECT_EQ(
        CompareToReference(*model, x, OutputOf(*probe, x), geometry.samples, geometry.spatial), "");
  }
}

TEST_F(CpuLaneTest, ABatchGivesTheBitsThatEachRequestGivesAlone) {
  std::mt19937_64 random(norm::testing::TestSeed());
  for (const norm::DType dtype : {norm::DType::kFloat32, norm::DType::kBFloat16}) {
    std::vector<std::unique_ptr<RequestProbe>> together;
    std::vector<Tensor> inputs;
    std::vector<RequestProbe*> batch;
    std::vector<std::vector<std::int64_t>> shapes;
    for (int i = 0; i < 40; ++i) {
      const auto samples = static_cast<std::int64_t>(random() % 4);
      const auto spatial = static_cast<std::int64_t>(1 + random() % (i % 8 == 0 ? 9000 : 70));
      shapes.push_back({samples, 7, spatial});
      inputs.push_back(RandomTensor(dtype, samples * 7 * spatial, random()));
      together.push_back(Make(model_, shapes.back(), inputs.back(), LaneSplit(random() % 5)));
      batch.push_back(together.back().get());
    }
    Run(batch);
    for (std::size_t i = 0; i < together.size(); ++i) {
      const auto alone = Make(model_, shapes[i], inputs[i]);
      Run({alone.get()});
      EXPECT_TRUE(OutputOf(*together[i], inputs[i]).SameBytes(OutputOf(*alone, inputs[i])))
          << "request " << i;
    }
  }
}

TEST_F(CpuLaneTest, InputsLargerThanOneGatherGiveTheSameBits) {
  const std::int64_t samples = 9;
  const std::int64_t spatial = 50'000;  // 1.4 MB a sample; the lane gathers 2 MiB at a time.
  const Tensor x = RandomTensor(norm::DType::kFloat32, samples * 7 * spatial, 10);
  const auto whole = Make(model_, {samples, 7, spatial}, x, LaneSplit::kOnePiece);
  const auto sliced = Make(model_, {samples, 7, spatial}, x, LaneSplit::kOddPieces);
  const auto other = Make(model_, {samples, 7, spatial}, x, LaneSplit::kSingleBytesAndEmpty);
  Run({whole.get(), sliced.get(), other.get()});
  const Tensor y = OutputOf(*whole, x);
  EXPECT_TRUE(OutputOf(*sliced, x).SameBytes(y));
  EXPECT_TRUE(OutputOf(*other, x).SameBytes(y));
  EXPECT_EQ(CompareToReference(*model_, x, y, samples, spatial), "");
}

TEST_F(CpuLaneTest, PartsOfASampleHaveTheBitsOfTheWhole) {
  const std::int64_t spatial = 1031;
  const Tensor x = RandomTensor(norm::DType::kFloat32, 7 * spatial, 11);
  const auto whole = Make(model_, {1, 7, spatial}, x);
  Run({whole.get()});
  const std::vector<std::byte> bytes = BytesOf(x);
  const std::int64_t channel_bytes = spatial * 4;
  std::vector<std::unique_ptr<RequestProbe>> parts;
  std::vector<RequestProbe*> batch;
  for (const ChannelRange channels : {ChannelRange{0, 2}, {2, 1}, {3, 4}, {3, 4}, {0, 7}}) {
    parts.push_back(Make(model_, {1, 7, spatial}, x));
    Request& request = *parts.back()->request();
    const auto begin = bytes.begin() + channels.first * channel_bytes;
    const std::vector<std::byte> part(begin, begin + channels.count * channel_bytes);
    const TensorSize size = {channels.count * channel_bytes};
    request.geometry = {1, spatial, channels.count, channels, {size}, {size, {}, {}}};
    SplitInput(request, part, parts.size() % 2 == 0 ? LaneSplit::kOnePiece : LaneSplit::kOddPieces);
    batch.push_back(parts.back().get());
  }
  const auto beside = Make(model_, {1, 7, spatial}, x, LaneSplit::kOddPieces);
  batch.push_back(beside.get());
  std::vector<ChannelRange> ranges;
  for (const auto& part : parts) ranges.push_back(part->request()->geometry.channels);
  Run(batch);
  EXPECT_TRUE(OutputOf(*beside, x).SameBytes(OutputOf(*whole, x)));
  const std::byte* expected = whole->completion().outputs[0].data();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Completion& completion = parts[i]->completion();
    ASSERT_TRUE(completion.status.ok()) << completion.status;
    ASSERT_EQ(completion.outputs[0].size(),
              static_cast<std::size_t>(ranges[i].count * channel_bytes));
    EXPECT_EQ(std::memcmp(completion.outputs[0].data(), expected + ranges[i].first * channel_bytes,
                          completion.outputs[0].size()),
              0)
        << "part " << i;
  }
}

TEST_F(CpuLaneTest, WritesToTheMemoryThatTheRequestNames) {
  const Tensor x = RandomTensor(norm::DType::kFloat32, 7 * 10, 3);
  for (const LaneSplit split : {LaneSplit::kOnePiece, LaneSplit::kOddPieces}) {
    Tensor y(norm::DType::kFloat32, 7 * 10);
    const auto probe = Make(model_, {1, 7, 10}, x, split);
    probe->request()->outputs = {{{static_cast<std::byte*>(y.data()), y.bytes()}, {}}};
    Run({probe.get()});
    EXPECT_EQ(probe->completion().outputs[0].size(), 0U);
    EXPECT_EQ(CompareToReference(*model_, x, y, 1, 10), "");
    EXPECT_TRUE(y.GuardsIntact());
  }
  EXPECT_EQ(pool_.Use().free_bytes, 0) << "the pool was not needed";
}

TEST_F(CpuLaneTest, ComputesInPlaceWhenOutputIsTheInput) {
  const Tensor x = RandomTensor(norm::DType::kFloat32, 7 * 10, 4);
  Tensor xy(norm::DType::kFloat32, 7 * 10);
  xy.CopyFrom(x);
  const auto probe = std::make_unique<RequestProbe>(model_, std::vector<std::int64_t>{1, 7, 10});
  auto* data = static_cast<std::byte*>(xy.data());
  probe->request()->inputs[0].views = {ConstBytes(data, xy.bytes())};
  probe->request()->outputs = {{{data, xy.bytes()}, {}}};
  Run({probe.get()});
  EXPECT_EQ(CompareToReference(*model_, x, xy, 1, 10), "");
}

TEST_F(CpuLaneTest, AnswersAnEmptyTensorWithAnEmptyTensor) {
  RequestProbe probe(model_, {0, 7, 10});
  Run({&probe});
  EXPECT_EQ(probe.completion().status, absl::OkStatus());
  EXPECT_EQ(probe.completion().outputs[0].size(), 0U);
}

TEST_F(CpuLaneTest, EndsWhatNobodyWantsWithoutComputing) {
  const Tensor x = RandomTensor(norm::DType::kFloat32, 7 * 10, 5);
  const auto wanted = Make(model_, {1, 7, 10}, x);
  const auto cancelled = Make(model_, {1, 7, 10}, x);
  const auto expired = Make(model_, {1, 7, 10}, x);
  cancelled->SetCancelled();
  expired->request()->deadline = clock_.Now();
  Run({cancelled.get(), wanted.get(), expired.get()});
  EXPECT_EQ(cancelled->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(expired->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(CompareToReference(*model_, x, OutputOf(*wanted, x), 1, 10), "");
  EXPECT_EQ(wanted->completion().batch.requests, 1);
  EXPECT_EQ(metrics_.batch_requests, 1) << "only what is computed counts";
}

TEST_F(CpuLaneTest, ABatchThatNobodyWantsIsNoBatch) {
  RequestProbe cancelled(model_, {1, 7, 10});
  cancelled.SetCancelled();
  Run({&cancelled});
  EXPECT_EQ(metrics_.batches, 0);
}

TEST_F(CpuLaneTest, ARequestWhoseMemoryCannotBeHadFailsAlone) {
  const Tensor x = RandomTensor(norm::DType::kFloat32, 7 * 10, 6);
  const auto before = Make(model_, {1, 7, 10}, x);
  const auto huge = Make(model_, {1, 7, 10}, x);
  const auto short_input = Make(model_, {1, 7, 10}, x);
  const auto odd_output = Make(model_, {1, 7, 10}, x);
  const auto after = Make(model_, {1, 7, 10}, x);
  huge->request()->geometry.outputs[0].bytes = std::int64_t{1} << 60;
  short_input->request()->inputs[0].views.back().remove_suffix(1);
  std::vector<std::byte> memory(x.bytes() + 1);
  odd_output->request()->outputs = {{{memory.data() + 1, x.bytes()}, {}}};
  Run({before.get(), huge.get(), short_input.get(), odd_output.get(), after.get()});
  EXPECT_EQ(huge->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(short_input->code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(short_input->completion().status.message()),
              HasSubstr("inputs[0]: 279 bytes, wanted the tensor's 280"));
  EXPECT_EQ(odd_output->code(), absl::StatusCode::kInternal);
  EXPECT_EQ(CompareToReference(*model_, x, OutputOf(*before, x), 1, 10), "");
  EXPECT_EQ(CompareToReference(*model_, x, OutputOf(*after, x), 1, 10), "");
}

TEST_F(CpuLaneTest, ReleasesTheInputBeforeDone) {
  const Tensor x = RandomTensor(norm::DType::kFloat32, 7 * 10, 7);
  for (const LaneSplit split : {LaneSplit::kOnePiece, LaneSplit::kOddPieces}) {
    const auto probe = Make(model_, {1, 7, 10}, x, split);
    const std::weak_ptr<void> input = probe->request()->input_owner;
    bool released = false;
    probe->OnDone([&] { released = input.expired(); });
    Run({probe.get()});
    EXPECT_TRUE(released);
  }
}

TEST_F(CpuLaneTest, TellsStageTimesAndTheBatch) {
  const Tensor x = RandomTensor(norm::DType::kFloat32, 7 * 10, 8);
  const auto a = Make(model_, {1, 7, 10}, x);
  const auto b = Make(model_, {1, 7, 10}, x, LaneSplit::kOddPieces);
  Run({a.get(), b.get()});
  for (const auto* probe : {a.get(), b.get()}) {
    const Completion& completion = probe->completion();
    EXPECT_EQ(completion.stages[Stage::kGather], std::chrono::microseconds(1));
    EXPECT_EQ(completion.stages[Stage::kCompute], std::chrono::microseconds(1));
    EXPECT_EQ(completion.batch.id, kBatchId);
    EXPECT_EQ(completion.batch.requests, 2);
    EXPECT_EQ(completion.batch.bytes, 2 * 280);
    EXPECT_EQ(completion.batch.lane, "cpu:0");
  }
  EXPECT_EQ(metrics_.batches, 1);
  EXPECT_EQ(metrics_.batch_bytes, 2 * 280);
  EXPECT_EQ(lane_metrics_.busy_ns, 3000);
}

TEST_F(CpuLaneTest, OutputsReturnToThePoolWhenTheirOwnersLetGo) {
  const Tensor x = RandomTensor(norm::DType::kFloat32, 7 * 10, 9);
  {
    const auto probe = Make(model_, {1, 7, 10}, x);
    Run({probe.get()});
    EXPECT_GT(pool_.Use().used_bytes, 0);
  }
  EXPECT_EQ(pool_.Use().used_bytes, 0);
  EXPECT_GT(pool_.Use().free_bytes, 0);
}

}  // namespace
}  // namespace normd
