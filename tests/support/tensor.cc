#include "tests/support/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "kernels/reference.h"

namespace normd::norm::testing {
namespace {

// Consecutive 16-bit floats are consecutive numbers, with both zeros at 0.
int Ordered(std::uint16_t bits) {
  const int magnitude = bits & 0x7FFF;
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

std::uint16_t Rounded(DType dtype, double value) {
  std::uint16_t bits = 0;
  StoreElement(dtype, &bits, 0, value);
  return bits;
}

bool IsHalf(DType dtype) { return SizeOf(dtype) == 2; }

// `expected` rounded to `dtype`, for the special values.
double Round(DType dtype, double value) {
  double storage = 0;
  StoreElement(dtype, &storage, 0, value);
  return LoadElement(dtype, &storage, 0);
}

bool Matches(DType dtype, double got, double expected, const Tolerance& tolerance) {
  const double rounded = Round(dtype, expected);
  if (std::isnan(got) || std::isnan(expected)) return std::isnan(got) && std::isnan(expected);
  if (got == rounded) return true;
  if (IsHalf(dtype)) {
    const int distance = Ordered(Rounded(dtype, got)) - Ordered(Rounded(dtype, expected));
    if (std::abs(distance) <= tolerance.ulps) return true;
  }
  return std::fabs(got - expected) <= tolerance.absolute + tolerance.relative * std::fabs(expected);
}

// N(0, 1). To draw each number anew takes longer than most computations on it.
const std::vector<double>& NormalNumbers() {
  static const std::vector<double> pool = [] {
    std::mt19937_64 generator(TestSeed());
    std::normal_distribution<double> normal(0, 1);
    std::vector<double> values(1 << 16);
    for (double& value : values) value = normal(generator);
    return values;
  }();
  return pool;
}

// In [0, 1). clang++ does not fold the two logarithms that std::uniform_real_distribution asks for
// with each number: they take three quarters of what a test on large tensors computes.
double Uniform(std::mt19937_64& generator) {
  return static_cast<double>(generator() >> 11) * 0x1p-53;
}

}  // namespace

std::uint64_t TestSeed() {
  static const std::uint64_t seed = [] {
    const char* text = std::getenv("NORMD_TEST_SEED");
    const std::uint64_t value = text == nullptr ? 20261120 : std::strtoull(text, nullptr, 10);
    std::printf("NORMD_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

Tensor::Tensor(DType dtype, std::int64_t count, std::int64_t offset)
    : dtype_(dtype),
      count_(count),
      storage_(
          static_cast<std::size_t>(count + offset) * SizeOf(dtype) + 2 * kGuardBytes + kBoundary,
          kGuard) {
  const auto base = reinterpret_cast<std::uintptr_t>(storage_.data()) + kGuardBytes;
  const std::uintptr_t aligned = (base + kBoundary - 1) / kBoundary * kBoundary;
  data_ = storage_.data() + kGuardBytes + (aligned - base) +
          static_cast<std::size_t>(offset) * SizeOf(dtype);
}

double Tensor::Get(std::int64_t index) const { return LoadElement(dtype_, data_, index); }

void Tensor::Set(std::int64_t index, double value) { StoreElement(dtype_, data_, index, value); }

void Tensor::Fill(Data data, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  const std::vector<double>& pool = NormalNumbers();
  std::size_t next = generator() % pool.size();
  for (std::int64_t i = 0; i < count_; ++i) {
    const double normal = pool[next];
    next = next + 1 == pool.size() ? 0 : next + 1;
    double value = 3.25;
    switch (data) {
      case Data::kUniform: value = Uniform(generator); break;
      case Data::kNormal:
      case Data::kOutlier: value = normal; break;
      case Data::kLargeMean: value = 1e4 + normal; break;
      case Data::kConstant: break;
      case Data::kHalfOverflow: value = 300 * normal; break;
    }
    // Zeros of either sign, whose sums have signs that show the order of a kernel's steps.
    if (data == Data::kNormal && i % 61 == 7) value = i % 2 == 0 ? 0.0 : -0.0;
    Set(i, value);
  }
  if (data == Data::kOutlier && count_ > 0) {
    Set(std::min<std::int64_t>(count_ - 1, 7), dtype_ == DType::kFloat16 ? 6e4 : 1e6);
  }
}

void Tensor::Poison() { std::memset(data_, 0xFF, bytes()); }

void Tensor::CopyFrom(const Tensor& other) {
  if (bytes() > 0) std::memcpy(data_, other.data_, bytes());
}

bool Tensor::GuardsIntact() const {
  const auto is_guard = [](unsigned char byte) { return byte == kGuard; };
  const unsigned char* end = data_ + bytes();
  return std::all_of(data_ - kGuardBytes, data_, is_guard) &&
         std::all_of(end, end + kGuardBytes, is_guard);
}

bool Tensor::SameBytes(const Tensor& other) const {
  return bytes() == other.bytes() &&
         (bytes() == 0 || std::memcmp(data_, other.data_, bytes()) == 0);
}

ParamSet::ParamSet(const NormSpec& spec, DType dtype, std::uint64_t seed, bool with_affine)
    : affine(with_affine),
      given(spec.statistics == Statistics::kGiven),
      gamma(dtype, spec.channels),
      beta(dtype, spec.channels),
      mean(dtype, given ? spec.channels : 0),
      variance(dtype, given ? spec.channels : 0) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (std::int64_t c = 0; c < spec.channels; ++c) {
    gamma.Set(c, 1 + 0.5 * uniform(generator));
    beta.Set(c, uniform(generator));
    if (c % 11 == 5) gamma.Set(c, c % 2 == 0 ? 0.0 : -0.0);
    if (c % 11 == 5 || c % 11 == 8) beta.Set(c, -0.0);
    if (!given) continue;
    mean.Set(c, uniform(generator));
    variance.Set(c, 1 + 0.5 * uniform(generator));
  }
}

NormParams ParamSet::View() const {
  NormParams params;
  if (affine) {
    params.gamma = {gamma.data(), gamma.dtype()};
    params.beta = {beta.data(), beta.dtype()};
  }
  if (given) {
    params.mean = {mean.data(), mean.dtype()};
    params.variance = {variance.data(), variance.dtype()};
  }
  return params;
}

Tolerance TightTolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return {1e-13, 1e-13, 0};
    case DType::kFloat32: return {4e-6, 4e-6, 0};
    case DType::kFloat16:
    case DType::kBFloat16: return {4e-6, 0, 1};
    default: return {};
  }
}

std::string Compare(const Tensor& y, const std::vector<double>& expected, Tolerance tolerance) {
  if (static_cast<std::size_t>(y.count()) != expected.size()) return "sizes differ";
  std::int64_t wrong = 0;
  std::int64_t worst = -1;
  double worst_error = -1;
  for (std::int64_t i = 0; i < y.count(); ++i) {
    const double want = expected[static_cast<std::size_t>(i)];
    const double got = y.Get(i);
    if (Matches(y.dtype(), got, want, tolerance)) continue;
    ++wrong;
    const double error = std::fabs(got - want) / (1e-30 + std::fabs(want));
    if (worst < 0 || !(error <= worst_error)) {
      worst = i;
      worst_error = error;
    }
  }
  if (wrong == 0) return "";
  char text[200];
  std::snprintf(text, sizeof(text), "%lld of %lld elements differ; element %lld: %.9g, wanted %.9g",
                static_cast<long long>(wrong), static_cast<long long>(y.count()),
                static_cast<long long>(worst), y.Get(worst),
                expected[static_cast<std::size_t>(worst)]);
  return text;
}

}  // namespace normd::norm::testing
