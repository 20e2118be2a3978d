// A model's parameter of zeros.

#ifndef NORMD_TESTS_SERVER_MODEL_ZERO_PARAMETER_H_
#define NORMD_TESTS_SERVER_MODEL_ZERO_PARAMETER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/model/model.h"

namespace normd::testing {

inline Parameter ZeroParameter(std::string name, const std::vector<std::int64_t>& dims,
                               norm::DType dtype = norm::DType::kFloat32) {
  const Shape shape = *Shape::Create(dims);
  const auto bytes = static_cast<std::size_t>(shape.elements()) * norm::SizeOf(dtype);
  return {std::move(name), dtype, shape, std::shared_ptr<std::byte[]>(new std::byte[bytes]())};
}

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_MODEL_ZERO_PARAMETER_H_
