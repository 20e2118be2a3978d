// A model's parameter in host memory.

#ifndef NORMD_OPERATIONS_PARAMETER_H_
#define NORMD_OPERATIONS_PARAMETER_H_

#include <cstddef>
#include <memory>
#include <string>

#include "base/shape.h"
#include "kernels/types.h"

namespace normd {

struct Parameter {
  std::string name;  // As in the file: "weight", or "encoder.norm1.weight".
  norm::DType dtype = norm::DType::kFloat32;
  Shape shape;
  // Row-major, aligned to 64 bytes. shared: versions that reload an unchanged file and device
  // uploads in flight may hold it while the model goes.
  std::shared_ptr<const std::byte[]> data;
};

}  // namespace normd

#endif  // NORMD_OPERATIONS_PARAMETER_H_
