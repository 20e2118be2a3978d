// What tests of ValidateSpec, ValidateSegments and ValidateLinearNorm share.

#ifndef NORMD_TESTS_KERNELS_REFUSAL_H_
#define NORMD_TESTS_KERNELS_REFUSAL_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "kernels/norm.h"

namespace normd::norm {

inline constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

// What tensors and parameters point to: validation asks for null and for alignment alone.
alignas(64) inline float memory[64] = {};
inline const ParamVector kPresent{memory, DType::kFloat32};

// The message must begin with the field, so that a caller can pass it on.
inline void ExpectInvalid(const Status& status, const std::string& beginning) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().rfind(beginning, 0), 0u)
      << "\"" << status.message() << "\" instead of \"" << beginning << "...\"";
}

}  // namespace normd::norm

#endif  // NORMD_TESTS_KERNELS_REFUSAL_H_
