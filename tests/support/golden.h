// The golden vectors of tests/support/golden: PyTorch's results, and their errors.

#ifndef NORMD_TESTS_SUPPORT_GOLDEN_H_
#define NORMD_TESTS_SUPPORT_GOLDEN_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/norm.h"
#include "tests/support/tensor.h"

namespace normd::norm::testing {

struct GoldenCase {
  std::string name;  // The output is tensor "<name>.y".
  std::string op;
  std::string activation;
  std::string inputs;  // Tensors "<inputs>.x", ".gamma", ".beta", ".mean" and ".variance".
  std::int64_t samples = 0;
  std::int64_t channels = 0;
  std::int64_t groups = 0;
  std::int64_t spatial = 0;
};

// PyTorch float32's distance from its float64 on data of MakeGoldenData.
struct GoldenError {
  std::string op;
  std::string data;
  std::int64_t rows = 0;
  std::int64_t length = 0;
  double max = 0;
  double rms = 0;
};

struct Golden {
  std::map<std::string, Tensor> tensors;
  std::vector<GoldenCase> cases;
  std::vector<GoldenError> errors;
};

// Reads golden.txt and golden.bin of `folder`; throws std::runtime_error if they are broken.
Golden ReadGolden(const std::string& folder);

// The spec of an op by make_golden.py's name for it.
NormSpec GoldenSpec(const std::string& op, std::int64_t channels, std::int64_t groups, DType dtype);

// make_golden.py's data_set(): rows * length float32 elements.
Tensor MakeGoldenData(const std::string& data, std::int64_t rows, std::int64_t length);

}  // namespace normd::norm::testing

#endif  // NORMD_TESTS_SUPPORT_GOLDEN_H_
