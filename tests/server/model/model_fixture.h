// Models of a config and parameters.

#ifndef NORMD_TESTS_SERVER_MODEL_MODEL_FIXTURE_H_
#define NORMD_TESTS_SERVER_MODEL_MODEL_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/metrics/metrics.h"
#include "server/model/config.h"
#include "server/model/model.h"

namespace normd::testing {

// Zeros.
inline Parameter ZeroParameter(std::string name, const std::vector<std::int64_t>& dims,
                               norm::DType dtype = norm::DType::kFloat32) {
  const Shape shape = *Shape::Create(dims);
  const auto bytes = static_cast<std::size_t>(shape.elements()) * norm::SizeOf(dtype);
  return {std::move(name), dtype, shape, std::shared_ptr<std::byte[]>(new std::byte[bytes]())};
}

class ModelFixture : public ::testing::Test {
 protected:
  absl::StatusOr<std::shared_ptr<Model>> Create(const std::string& config,
                                                std::vector<Parameter> parameters) {
    absl::StatusOr<v1::ModelConfig> parsed = ParseModelConfig(config);
    if (!parsed.ok()) return parsed.status();
    return Model::Create("m", 3, *std::move(parsed), std::move(parameters),
                         metrics_.ForModel("m", 3));
  }
  std::string CreateError(const std::string& config, std::vector<Parameter> parameters) {
    const absl::Status status = Create(config, std::move(parameters)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  Metrics metrics_;
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_MODEL_MODEL_FIXTURE_H_
