// An operation for tests: three inputs and two outputs, of different types, so that nothing between
// the front ends and the lanes can rely on one of each.

#ifndef NORMD_TESTS_SUPPORT_MIX_OPERATION_H_
#define NORMD_TESTS_SUPPORT_MIX_OPERATION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "server/exec/cpu_program.h"
#include "server/model/model.h"

namespace normd {

// A sample has x, three float32; g, three float16 of the values 0 to 8; s, one float64.
//   y = x * g (three float32),  t = s + the sum of x (one float64)
inline constexpr std::int64_t kMixWidth = 3;
inline constexpr std::array<std::int64_t, 3> kMixInputBytes = {12, 6, 8};  // In a sample.
inline constexpr std::array<std::int64_t, 2> kMixOutputBytes = {12, 8};

// A sample's outputs from its inputs.
void ComputeMix(const std::byte* x, const std::byte* g, const std::byte* s, std::byte* y,
                std::byte* t);

// Without a backend state. `metrics` outlives the model.
std::shared_ptr<Model> MakeMixModel(ModelMetrics& metrics);

// The types of a request's inputs.
std::vector<TensorType> MixTypes(std::int64_t samples);

// On the CPU. With `overwrites`, x is gathered into y where it has to be.
std::unique_ptr<CpuProgram> MakeCpuMix(bool overwrites);

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_MIX_OPERATION_H_
