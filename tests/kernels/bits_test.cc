// Every backend: a search for a sample whose bits depend on its company.
//
// Each case computes one sample alone, then draws calls at random that compute the same sample in
// other ways: at any place of a batch, beside segments of other sizes, on any number of threads, at
// any alignment, in place, and cut into runs of groups as a stream cuts it. The bits must be those
// of the first call. Row lengths lie around the lengths at which a backend changes its path or cuts
// a row. The data makes rounding visible: with rows whose elements sum to zero the mean is nothing
// but rounding, and so is a good part of x - mean with large means.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/support/kernel_backend.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {
namespace {

enum class Path {
  kInstanceNorm,
  kGroupNorm,
  kLayerNorm,
  kRmsNorm,
  kMeanSquareGroups,   // Statistics::kMeanSquare with several rows in a sample.
  kGroupNormElements,  // Without trailing dimensions.
  kBatchNorm,
};

enum class Rounding {
  kZeroSum,    // Pairs of a number and its negative.
  kLargeMean,  // N(1000, 1)
  kWide,       // Magnitudes over 12 powers of two.
  kUneven,     // Stretches of N(0, 1), of N(1000, 1) and of numbers whose squares overflow.
};

// Numbers with random mantissas that samples are copied from.
constexpr std::int64_t kPoolElements = 1 << 20;

Tensor MakePool(DType dtype, Rounding kind) {
  Tensor pool(dtype, kPoolElements);
  std::mt19937_64 generator(TestSeed() + 40 + static_cast<std::uint64_t>(kind));
  std::normal_distribution<double> normal(0, 1);
  for (std::int64_t i = 0; i < kPoolElements; ++i) {
    double value = normal(generator);
    switch (kind) {
      case Rounding::kZeroSum:
        if (i % 2 == 1) value = -pool.Get(i - 1);
        break;
      case Rounding::kLargeMean: value += 1000; break;
      case Rounding::kWide: value *= std::exp2(static_cast<double>(generator() % 12)); break;
      case Rounding::kUneven:
        if (i / 64 % 8 == 3) value += 1000;
        if (i / 64 % 8 == 6) value *= dtype == DType::kFloat16 ? 1e3 : 1e25;
        break;
    }
    if (kind == Rounding::kUneven && i % 61 == 7) value = i % 2 == 0 ? 0.0 : -0.0;
    pool.Set(i, value);
  }
  return pool;
}

const Tensor& Pool(DType dtype, Rounding kind) {
  static std::map<std::pair<DType, Rounding>, Tensor> pools;
  const auto key = std::pair(dtype, kind);
  auto found = pools.find(key);
  if (found == pools.end()) found = pools.emplace(key, MakePool(dtype, kind)).first;
  return found->second;
}

// `count` elements from an even place of the pool on, which is repeated where it is too short.
void CopyFromPool(const Tensor& pool, std::int64_t first, std::int64_t count, void* to) {
  const std::size_t element = SizeOf(pool.dtype());
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t at = (first + done) % kPoolElements;
    const std::int64_t taken = std::min(count - done, kPoolElements - at);
    std::memcpy(static_cast<char*>(to) + static_cast<std::size_t>(done) * element,
                static_cast<const char*>(pool.data()) + static_cast<std::size_t>(at) * element,
                static_cast<std::size_t>(taken) * element);
    done += taken;
  }
}

struct Case {
  NormSpec spec;
  std::int64_t spatial = 1;
};

// A spec whose rows have `length` elements, or a few more where they hold several channels.
Case MakeCase(Path path, DType dtype, Layout layout, std::int64_t length) {
  Case made;
  switch (path) {
    case Path::kInstanceNorm: made = {InstanceNormSpec(3, dtype), length}; break;
    case Path::kGroupNorm: made = {GroupNormSpec(6, 3, dtype), (length + 1) / 2}; break;
    case Path::kLayerNorm: made = {LayerNormSpec(length, dtype), 1}; break;
    case Path::kRmsNorm: made = {RmsNormSpec(length, dtype), 1}; break;
    case Path::kMeanSquareGroups:
      made = {GroupNormSpec(6, 2, dtype), (length + 2) / 3};
      made.spec.statistics = Statistics::kMeanSquare;
      break;
    case Path::kGroupNormElements: made = {GroupNormSpec(2 * length, 2, dtype), 1}; break;
    case Path::kBatchNorm: made = {BatchNormSpec(5, dtype), length}; break;
  }
  made.spec.layout = layout;
  return made;
}

// Around what both backends' sources name as the ends of paths, chunks, parts and slices: some in
// elements, some in bytes.
std::vector<std::int64_t> RowLengths(DType dtype) {
  const auto element = static_cast<std::int64_t>(SizeOf(dtype));
  std::vector<std::int64_t> lengths = {1, 2, 3, 7, 31, 33, 100};
  for (const std::int64_t boundary :
       {std::int64_t{256}, std::int64_t{2048}, std::int64_t{16384}, std::int64_t{65536},
        (2 << 10) / element, (64 << 10) / element, (128 << 10) / element}) {
    for (const std::int64_t beside : {-1, 0, 1}) lengths.push_back(boundary + beside);
  }
  for (const std::int64_t length :
       {std::int64_t{16512}, std::int64_t{60002}, std::int64_t{131072}, (1 << 20) / element}) {
    lengths.push_back(length);
  }
#ifdef NORMD_SANITIZED
  // Several times slower there, which looks for other things than bits: no row of many chunks.
  std::erase_if(lengths, [](std::int64_t length) { return length > 16512; });
#endif
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

class KernelBitsTest : public ::testing::TestWithParam<std::tuple<Path, DType, Layout>> {
 protected:
  void SetUp() override {
    if (!backends_.front()->Available()) {
      GTEST_SKIP() << backends_.front()->Name() << " is not available";
    }
    if (backends_.front()->Name() != "cuda") {
      for (const int threads : {2, 3}) backends_.push_back(MakeKernelBackend(threads));
    }
  }

  std::int64_t Draw(std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(generator_);
  }
  KernelBackend& AnyBackend() {
    return *backends_[static_cast<std::size_t>(
        Draw(0, static_cast<std::int64_t>(backends_.size()) - 1))];
  }

  // The sample's results, alone in an aligned call on one thread.
  void ComputeAlone(const Case& one, const ParamSet& params, const Tensor& x, Tensor* y) {
    const Segment segment{x.data(), y->data(), 1, one.spatial};
    const Status status = backends_.front()->Normalize(one.spec, params.View(), &segment, 1);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // In a segment of several samples, beside other segments.
  void CheckInABatch(const Case& one, const ParamSet& params, const Tensor& x,
                     const Tensor& expected) {
    // Few of the longest samples.
    const std::int64_t most = x.count() > (1 << 18) ? 1 : 3;
    const std::int64_t before = Draw(0, most);
    const std::int64_t samples = before + 1 + Draw(0, most);
    const std::int64_t x_offset = Draw(0, 1) * Draw(1, 9);
    const bool in_place = Draw(0, 3) == 0;
    SCOPED_TRACE(::testing::Message() << "sample " << before << " of " << samples << ", offset "
                                      << x_offset << (in_place ? ", in place" : ""));
    Tensor batch(x.dtype(), samples * x.count(), x_offset);
    CopyFromPool(pool(), 2 * Draw(0, 1000), batch.count(), batch.data());
    const std::size_t at = static_cast<std::size_t>(before) * x.bytes();
    std::memcpy(static_cast<char*>(batch.data()) + at, x.data(), x.bytes());
    Tensor out(x.dtype(), in_place ? 0 : batch.count(), Draw(0, 1) * Draw(1, 9));
    void* const y = in_place ? batch.data() : out.data();

    std::vector<Tensor> others;
    std::vector<Segment> segments;
    for (std::int64_t i = Draw(0, 2); i > 0; --i) {
      const std::int64_t longest = std::min<std::int64_t>(2 * one.spatial, 20000);
      const std::int64_t spatial = one.spatial == 1 ? Draw(1, 2) : Draw(1, longest);
      others.emplace_back(x.dtype(), one.spec.channels * spatial);
      CopyFromPool(pool(), 2 * Draw(0, 1000), others.back().count(), others.back().data());
      segments.push_back({others.back().data(), others.back().data(), 1, spatial});
    }
    segments.insert(segments.begin() + Draw(0, static_cast<std::int64_t>(segments.size())),
                    Segment{batch.data(), y, samples, one.spatial});
    const Status status =
        AnyBackend().Normalize(one.spec, params.View(), segments.data(), segments.size());
    ASSERT_TRUE(status.ok()) << status.message();
    ExpectSameBits(static_cast<const char*>(y) + at, expected, 0, expected.bytes());
  }

  // In calls that cover some of its groups each.
  void CheckInPieces(const Case& one, const ParamSet& params, const Tensor& x,
                     const Tensor& expected) {
    const std::int64_t group_channels = one.spec.channels / one.spec.groups;
    const std::size_t group_bytes = x.bytes() / static_cast<std::size_t>(one.spec.groups);
    for (std::int64_t first = 0; first < one.spec.groups;) {
      const std::int64_t groups = Draw(1, one.spec.groups - first);
      SCOPED_TRACE(::testing::Message() << "groups " << first << " to " << first + groups - 1);
      NormSpec spec = one.spec;
      spec.groups = groups;
      spec.channels = groups * group_channels;
      NormParams part = params.View();
      for (ParamVector* param : {&part.gamma, &part.beta, &part.mean, &part.variance}) {
        if (param->data == nullptr) continue;
        param->data = static_cast<const char*>(param->data) +
                      first * group_channels * static_cast<std::int64_t>(SizeOf(param->dtype));
      }
      Tensor piece(x.dtype(), groups * group_channels * one.spatial, Draw(0, 1) * Draw(1, 9));
      const std::size_t at = static_cast<std::size_t>(first) * group_bytes;
      std::memcpy(piece.data(), static_cast<const char*>(x.data()) + at, piece.bytes());
      const Segment segment{piece.data(), piece.data(), 1, one.spatial};
      const Status status = AnyBackend().Normalize(spec, part, &segment, 1);
      ASSERT_TRUE(status.ok()) << status.message();
      ExpectSameBits(piece.data(), expected, at, piece.bytes());
      first += groups;
    }
  }

  void ExpectSameBits(const void* got, const Tensor& expected, std::size_t at, std::size_t bytes) {
    const char* const want = static_cast<const char*>(expected.data()) + at;
    if (std::memcmp(got, want, bytes) == 0) return;
    std::size_t differing = 0;
    const std::size_t element = SizeOf(expected.dtype());
    for (std::size_t i = 0; i < bytes; i += element) {
      differing += std::memcmp(static_cast<const char*>(got) + i, want + i, element) != 0 ? 1 : 0;
    }
    ADD_FAILURE() << differing << " of " << bytes / element << " elements have other bits";
  }

  const Tensor& pool() const { return Pool(std::get<1>(GetParam()), kind_); }

  Rounding kind_ = Rounding::kZeroSum;
  std::mt19937_64 generator_{TestSeed() + 41};
  std::vector<std::unique_ptr<KernelBackend>> backends_ = [] {
    std::vector<std::unique_ptr<KernelBackend>> backends;
    backends.push_back(MakeKernelBackend(1));
    return backends;
  }();
};

TEST_P(KernelBitsTest, ASampleHasTheSameBitsInAnyCompany) {
  const auto [path, dtype, layout] = GetParam();
  constexpr Activation kDrawn[] = {Activation::kRelu, Activation::kLeakyRelu, Activation::kSilu,
                                   Activation::kGeluErf, Activation::kGeluTanh};
  for (const std::int64_t length : RowLengths(dtype)) {
    // Without an activation there are more ways to compute a row of several chunks.
    const int plain = length > 16384 && length < 100000 ? 3 : 1;
    for (int draw = 0; draw <= plain; ++draw) {
      const bool activated = draw == plain;
      Case one = MakeCase(path, dtype, layout, length);
      if (activated) one.spec.activation = kDrawn[Draw(0, 4)];
      kind_ = static_cast<Rounding>(Draw(0, 3));
      SCOPED_TRACE(::testing::Message()
                   << backends_.front()->Name() << " row of " << RowLength(one.spec, one.spatial)
                   << ", activation " << static_cast<int>(one.spec.activation) << ", data "
                   << static_cast<int>(kind_));
      const ParamSet params(one.spec, Draw(0, 1) == 0 ? DType::kFloat32 : dtype, TestSeed() + 42,
                            Draw(0, 3) != 0);
      Tensor x(dtype, one.spec.channels * one.spatial);
      CopyFromPool(pool(), 2 * Draw(0, 1000), x.count(), x.data());
      Tensor expected(dtype, x.count());
      expected.Poison();
      ComputeAlone(one, params, x, &expected);
      for (int i = 0; i < 2; ++i) CheckInABatch(one, params, x, expected);
      if (layout == Layout::kChannelsFirst && one.spec.groups > 1) {
        CheckInPieces(one, params, x, expected);
      }
      if (HasFatalFailure()) return;
    }
  }
}

std::string BitsName(const ::testing::TestParamInfo<std::tuple<Path, DType, Layout>>& info) {
  static constexpr const char* kPaths[] = {"InstanceNorm", "GroupNorm",        "LayerNorm",
                                           "RmsNorm",      "MeanSquareGroups", "GroupNormElements",
                                           "BatchNorm"};
  return std::string(kPaths[static_cast<int>(std::get<0>(info.param))]) + "_" +
         Name(std::get<1>(info.param)) +
         (std::get<2>(info.param) == Layout::kChannelsFirst ? "_first" : "_last");
}

INSTANTIATE_TEST_SUITE_P(
    All, KernelBitsTest,
    ::testing::Combine(
        ::testing::Values(Path::kInstanceNorm, Path::kGroupNorm, Path::kLayerNorm, Path::kRmsNorm,
                          Path::kMeanSquareGroups, Path::kGroupNormElements, Path::kBatchNorm),
        ::testing::Values(DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16),
        ::testing::Values(Layout::kChannelsFirst, Layout::kChannelsLast)),
    BitsName);

}  // namespace
}  // namespace normd::norm::testing
