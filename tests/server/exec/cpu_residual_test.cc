// The CPU lane on a norm with a residual: two inputs and two outputs of one size.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/reference.h"
#include "operations/kernel_program.h"
#include "tests/server/exec/cpu_lane_fixture.h"
#include "tests/support/models.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

using norm::DType;
using norm::testing::Data;
using norm::testing::Tensor;
using norm::testing::TestSeed;
using ::testing::HasSubstr;

constexpr std::int64_t kLength = 19;

struct SentSum {
  SentSum(DType dtype, std::int64_t samples_of, std::int64_t length_of, std::uint64_t seed)
      : samples(samples_of),
        length(length_of),
        x(dtype, samples * length),
        residual(dtype, samples * length) {
    x.Fill(Data::kNormal, TestSeed() + seed);
    residual.Fill(Data::kHalfOverflow, TestSeed() + seed + 1);
  }
  std::int64_t samples;
  std::int64_t length;
  Tensor x;
  Tensor residual;
  int done = 0;
  Completion completion;
};

class CpuResidualTest : public CpuLaneFixture {
 protected:
  CpuResidualTest() { Load(kLength, DType::kFloat32); }

  void Load(std::int64_t length, DType weight_type) {
    model_.reset();
    Parameter weight;
    weight.name = "weight";
    weight.dtype = weight_type;
    weight.shape = *Shape::Create({length});
    std::shared_ptr<std::byte[]> data(
        new std::byte[static_cast<std::size_t>(length) * norm::SizeOf(weight_type)]);
    for (std::int64_t i = 0; i < length; ++i) {
      norm::StoreElement(weight_type, data.get(), i, 0.5 + 0.125 * static_cast<double>(i % 9));
    }
    weight.data = std::move(data);
    model_ = OnCpu(MakeModel("add",
                             absl::StrCat("add_rms_norm { normalized_shape: ", length,
                                          " eps: 1e-6 } activation: SILU"),
                             metrics_, {std::move(weight)}),
                   kernels_);
  }

  std::unique_ptr<Request> MakeRequest(SentSum& sent, Split x, Split residual) {
    auto request = std::make_unique<Request>();
    request->model = model_;
    request->dtype = sent.x.dtype();
    const TensorType type{sent.x.dtype(), *Shape::Create({sent.samples, sent.length})};
    request->geometry = *model_->Check(std::vector<TensorType>{type, type});
    const std::size_t sample_bytes =
        static_cast<std::size_t>(sent.length) * norm::SizeOf(sent.x.dtype());
    auto memory = std::make_shared<std::array<std::vector<std::byte>, 2>>();
    request->inputs.push_back({Lay(sent.x, sample_bytes, x, (*memory)[0]), {}});
    request->inputs.push_back({Lay(sent.residual, sample_bytes, residual, (*memory)[1]), {}});
    request->input_owner = std::move(memory);
    request->done = [&sent](Completion completion) {
      ++sent.done;
      sent.completion = std::move(completion);
    };
    return request;
  }

  static Tensor OutputOf(const SentSum& sent, std::size_t index) {
    EXPECT_EQ(sent.done, 1);
    EXPECT_EQ(sent.completion.outputs.size(), 3U) << "rstd is empty: nobody asks for it";
    return CpuLaneFixture::OutputOf(sent.completion, index, sent.x);
  }

  // The sum to the bit, and y within the type's tolerance of float64.
  void ExpectRight(const SentSum& sent, const Tensor& y, const Tensor& residual_out) {
    const auto& program = std::get<NormProgram>(model_->program());
    const norm::NormSpec& spec = program.Spec(sent.x.dtype());
    norm::Segment segment;
    segment.x = sent.x.data();
    segment.residual = sent.residual.data();
    segment.samples = sent.samples;
    Tensor sums(sent.x.dtype(), sent.x.count());
    for (std::int64_t i = 0; i < sums.count(); ++i) {
      sums.Set(i, sent.x.Get(i) + sent.residual.Get(i));
    }
    EXPECT_TRUE(residual_out.SameBytes(sums));
    std::vector<double> expected(static_cast<std::size_t>(sent.x.count()));
    const norm::Status status =
        norm::NormalizeReference(spec, program.params, segment, expected.data());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(norm::testing::Compare(y, expected, norm::testing::TightTolerance(y.dtype())), "");
  }
  void ExpectRight(const SentSum& sent) { ExpectRight(sent, OutputOf(sent, 0), OutputOf(sent, 1)); }

  std::shared_ptr<const Model> model_;
};

TEST_F(CpuResidualTest, GivesTheSameBitsHoweverTheInputsLie) {
  for (const std::int64_t length : {std::int64_t{1}, std::int64_t{2}, kLength}) {
    Load(length, DType::kFloat32);
    for (const DType dtype : kDTypes) {
      for (const std::int64_t samples : {0, 1, 2, 5, 23}) {
        SentSum whole(dtype, samples, length, 1);
        Run(MakeRequest(whole, Split::kOnePiece, Split::kOnePiece));
        ExpectRight(whole);
        for (const Split x : kSplits) {
          for (const Split residual : kSplits) {
            SCOPED_TRACE(absl::StrCat(norm::Name(dtype), " ", length, " ", samples, " ",
                                      static_cast<int>(x), static_cast<int>(residual)));
            SentSum sent(dtype, samples, length, 1);
            Run(MakeRequest(sent, x, residual));
            EXPECT_TRUE(OutputOf(sent, 0).SameBytes(OutputOf(whole, 0)));
            EXPECT_TRUE(OutputOf(sent, 1).SameBytes(OutputOf(whole, 1)));
          }
        }
      }
    }
  }
}

// More than is gathered between two calls of the kernels, on several threads.
TEST_F(CpuResidualTest, LongRowsThatAreCutKeepTheirBits) {
  constexpr std::int64_t kLong = 200'003;
  Load(kLong, DType::kFloat32);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    SentSum whole(dtype, 7, kLong, 3);
    Run(MakeRequest(whole, Split::kOnePiece, Split::kOnePiece));
    ExpectRight(whole);
    for (const auto& [x, residual] : {std::pair(Split::kAnywhere, Split::kAnywhere),
                                      std::pair(Split::kMisaligned, Split::kAnywhere),
                                      std::pair(Split::kAnywhere, Split::kAtSamples)}) {
      SentSum sent(dtype, 7, kLong, 3);
      Run(MakeRequest(sent, x, residual));
      EXPECT_TRUE(OutputOf(sent, 0).SameBytes(OutputOf(whole, 0)));
      EXPECT_TRUE(OutputOf(sent, 1).SameBytes(OutputOf(whole, 1)));
    }
  }
}

TEST_F(CpuResidualTest, RequestsOfDifferentSizesShareABatchAndKeepTheirBits) {
  const std::int64_t sizes[] = {1, 70, 3, 0, 1, 64, 2};
  for (const DType dtype : kDTypes) {
    std::deque<SentSum> together;
    std::vector<std::unique_ptr<Request>> requests;
    for (const std::int64_t samples : sizes) {
      SentSum& sent = together.emplace_back(dtype, samples, kLength, 10 * together.size());
      requests.push_back(MakeRequest(sent, kSplits[random_() % 5], kSplits[random_() % 5]));
    }
    Run(std::move(requests));
    for (std::size_t i = 0; i < together.size(); ++i) {
      SCOPED_TRACE(i);
      ExpectRight(together[i]);
      SentSum alone(dtype, sizes[i], kLength, 10 * i);
      Run(MakeRequest(alone, Split::kOnePiece, Split::kOnePiece));
      EXPECT_TRUE(OutputOf(alone, 0).SameBytes(OutputOf(together[i], 0)));
      EXPECT_TRUE(OutputOf(alone, 1).SameBytes(OutputOf(together[i], 1)));
    }
  }
}

TEST_F(CpuResidualTest, TakesAWeightOfAnyFloatType) {
  for (const DType weight : kDTypes) {
    Load(kLength, weight);
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(absl::StrCat(norm::Name(weight), " ", norm::Name(dtype)));
      SentSum sent(dtype, 5, kLength, 4);
      Run(MakeRequest(sent, Split::kAnywhere, Split::kOnePiece));
      ExpectRight(sent);
    }
  }
}

// A NaN, or infinities that cancel, reach their own row alone; a sum that overflows its type is an
// infinity in residual_out, and what RMSNorm makes of that in y.
TEST_F(CpuResidualTest, NansAndInfinitiesStayInTheirRow) {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : kDTypes) {
    SCOPED_TRACE(norm::Name(dtype));
    SentSum sent(dtype, 5, kLength, 5);
    sent.x.Set(3, nan);
    sent.residual.Set(kLength + 4, infinity);
    sent.x.Set(2 * kLength + 5, infinity);
    sent.residual.Set(2 * kLength + 5, -infinity);
    Run(MakeRequest(sent, Split::kAnywhere, Split::kAnywhere));
    const Tensor y = OutputOf(sent, 0);
    const Tensor sums = OutputOf(sent, 1);
    for (std::int64_t i = 0; i < kLength; ++i) {
      EXPECT_TRUE(std::isnan(y.Get(i)));
      EXPECT_EQ(std::isnan(sums.Get(i)), i == 3);
      EXPECT_EQ(std::isnan(y.Get(kLength + i)), i == 4) << "of an infinity, zeros and a NaN";
      EXPECT_EQ(std::isinf(sums.Get(kLength + i)), i == 4);
      EXPECT_TRUE(std::isnan(y.Get(2 * kLength + i)));
      EXPECT_EQ(std::isnan(sums.Get(2 * kLength + i)), i == 5);
    }
    SentSum clean(dtype, 5, kLength, 5);
    Run(MakeRequest(clean, Split::kOnePiece, Split::kOnePiece));
    const Tensor clean_y = OutputOf(clean, 0);
    for (std::int64_t i = 3 * kLength; i < y.count(); ++i) EXPECT_EQ(y.Get(i), clean_y.Get(i));
  }
  SentSum half(DType::kFloat16, 1, kLength, 6);
  half.x.Set(0, 60000);
  half.residual.Set(0, 60000);
  Run(MakeRequest(half, Split::kOnePiece, Split::kOnePiece));
  EXPECT_EQ(OutputOf(half, 1).Get(0), infinity);
  EXPECT_TRUE(std::isnan(OutputOf(half, 0).Get(0)));
}

// Where the memory of an output may lie.
enum class Where { kPool, kOwn, kInput };

TEST_F(CpuResidualTest, WritesToTheMemoryThatTheRequestNamesAlsoOverItsInputs) {
  for (const DType dtype : kDTypes) {
    for (const Split split : {Split::kOnePiece, Split::kAnywhere}) {
      for (const Where y : {Where::kPool, Where::kOwn, Where::kInput}) {
        for (const Where sum : {Where::kPool, Where::kOwn, Where::kInput}) {
          SCOPED_TRACE(absl::StrCat(norm::Name(dtype), " ", static_cast<int>(split),
                                    static_cast<int>(y), static_cast<int>(sum)));
          SentSum sent(dtype, 4, kLength, 7);
          std::unique_ptr<Request> request = MakeRequest(sent, split, split);
          request->outputs.resize(2);
          std::vector<Tensor> named;
          for (std::size_t i = 0; i < 2; ++i) {
            const Where where = i == 0 ? y : sum;
            Tensor& memory = named.emplace_back(dtype, sent.x.count());
            const MutableBytes bytes(static_cast<std::byte*>(memory.data()), memory.bytes());
            if (where == Where::kInput) {
              memory.CopyFrom(i == 0 ? sent.x : sent.residual);
              request->inputs[i].views = {bytes};
            } else {
              memory.Poison();
            }
            if (where != Where::kPool) request->outputs[i] = {bytes, {}};
          }
          Run(std::move(request));
          ASSERT_TRUE(sent.completion.status.ok()) << sent.completion.status;
          for (std::size_t i = 0; i < 2; ++i) {
            const Buffer& output = sent.completion.outputs[i];
            if ((i == 0 ? y : sum) != Where::kPool) {
              EXPECT_EQ(output.size(), 0U);
              continue;
            }
            std::memcpy(named[i].data(), output.data(), output.size());
          }
          ExpectRight(sent, named[0], named[1]);
          EXPECT_TRUE(named[0].GuardsIntact() && named[1].GuardsIntact());
        }
      }
    }
  }
}

// What is gathered goes to the outputs, so a request that names them takes no other memory.
TEST_F(CpuResidualTest, NeedsNoMemoryBesideTheOutputs) {
  SentSum sent(DType::kFloat32, 40, kLength, 8);
  std::unique_ptr<Request> request = MakeRequest(sent, Split::kAnywhere, Split::kMisaligned);
  Tensor y(DType::kFloat32, sent.x.count());
  Tensor sum(DType::kFloat32, sent.x.count());
  request->outputs = {{{static_cast<std::byte*>(y.data()), y.bytes()}, {}},
                      {{static_cast<std::byte*>(sum.data()), sum.bytes()}, {}}};
  Run(std::move(request));
  ExpectRight(sent, y, sum);
  EXPECT_EQ(pool_.Use().free_bytes + pool_.Use().used_bytes, 0);
}

TEST_F(CpuResidualTest, ARequestWithoutItsResidualFailsAlone) {
  SentSum good(DType::kFloat32, 2, kLength, 9);
  SentSum bad(DType::kFloat32, 2, kLength, 10);
  std::vector<std::unique_ptr<Request>> requests;
  requests.push_back(MakeRequest(bad, Split::kOnePiece, Split::kOnePiece));
  requests.back()->inputs.pop_back();
  requests.push_back(MakeRequest(good, Split::kAnywhere, Split::kOnePiece));
  Run(std::move(requests));
  EXPECT_EQ(bad.completion.status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(bad.completion.status.message()),
              HasSubstr("inputs[1]: 0 bytes, wanted the tensor's 152"));
  ExpectRight(good);
}

}  // namespace
}  // namespace normd
