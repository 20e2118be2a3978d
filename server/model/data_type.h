// Element types, between the kernels' and the protocol's.

#ifndef NORMD_SERVER_MODEL_DATA_TYPE_H_
#define NORMD_SERVER_MODEL_DATA_TYPE_H_

#include "absl/status/statusor.h"
#include "kernels/types.h"
#include "normd/v1/model_config.pb.h"

namespace normd {

absl::StatusOr<norm::DType> FromProto(v1::DataType dtype);  // InvalidArgument: "dtype: ..."
v1::DataType ToProto(norm::DType dtype);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_DATA_TYPE_H_
