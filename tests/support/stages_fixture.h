// What tests of stages share that run on every backend, type, layout and kind of rows.

#ifndef NORMD_TESTS_SUPPORT_STAGES_FIXTURE_H_
#define NORMD_TESTS_SUPPORT_STAGES_FIXTURE_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/kernel_backend.h"
#include "tests/support/staged_segment.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {

// `sizes` if the backend is a device, which cuts rows by them. A CPU does not: the first and last.
inline std::vector<std::int64_t> DeviceSizesFor(const KernelBackend& backend,
                                                std::initializer_list<std::int64_t> sizes) {
  if (backend.Name() == "cuda") return sizes;
  return {*sizes.begin(), *(sizes.end() - 1)};
}

using StagesParam = std::tuple<DType, Layout, Rows>;

// Skips where the machine lacks the device, and where CUDA lacks what a case asks for.
class StagesFixture : public ::testing::TestWithParam<StagesParam> {
 protected:
  explicit StagesFixture(int threads = 2) : backend_(MakeKernelBackend(threads)) {}

  void SetUp() override {
    if (!backend_->Available()) GTEST_SKIP() << backend_->Name() << " is not available";
  }
  void TearDown() override {
    if (unsupported_.empty()) return;
    ASSERT_TRUE(is_cuda()) << unsupported_;
    GTEST_SKIP() << unsupported_;
  }

  DType dtype() const { return std::get<DType>(GetParam()); }
  bool is_cuda() const { return backend_->Name() == "cuda"; }

  std::vector<std::int64_t> DeviceSizes(std::initializer_list<std::int64_t> sizes) const {
    return DeviceSizesFor(*backend_, sizes);
  }

  // Other draws for each of the parameters.
  static std::uint64_t SeedOf(std::uint64_t test) {
    const auto [dtype, layout, rows] = GetParam();
    return TestSeed() + 1000 * test + 100 * static_cast<std::uint64_t>(dtype) +
           10 * static_cast<std::uint64_t>(layout) + static_cast<std::uint64_t>(rows);
  }

  StagedSpec Plain(Statistics statistics) const {
    const auto [dtype, layout, rows] = GetParam();
    return PlainSpec(dtype, layout, rows, statistics);
  }

  const std::unique_ptr<KernelBackend> backend_;
  std::string unsupported_;  // The backend's refusal of what it lacks.
};

// Rows of groups and of positions, in both layouts.
template <typename Types>
auto EveryRow(const Types& types) {
  return ::testing::Combine(::testing::ValuesIn(types),
                            ::testing::Values(Layout::kChannelsFirst, Layout::kChannelsLast),
                            ::testing::Values(Rows::kGroup, Rows::kPosition));
}
template <typename Types>
auto EveryRowOfMixedRuns(const Types& types) {
  return ::testing::Combine(::testing::ValuesIn(types), ::testing::Values(Layout::kMixedRuns),
                            ::testing::Values(Rows::kPosition));
}

// "float32_first_groups".
inline std::string StagesName(const ::testing::TestParamInfo<StagesParam>& info) {
  const auto [dtype, layout, rows] = info.param;
  return std::string(Name(dtype)) +
         (layout == Layout::kChannelsFirst  ? "_first"
          : layout == Layout::kChannelsLast ? "_last"
                                            : "_mixed_runs") +
         (rows == Rows::kGroup ? "_groups" : "_positions");
}

}  // namespace normd::norm::testing

#endif  // NORMD_TESTS_SUPPORT_STAGES_FIXTURE_H_
