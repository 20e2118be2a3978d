// The elements of a tensor in a JSON text.

#ifndef NORMD_WIRE_JSON_TENSOR_H_
#define NORMD_WIRE_JSON_TENSOR_H_

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/shape.h"
#include "kernels/types.h"
#include "wire/json_reader.h"

namespace normd {

// Reads the array `data` of the elements of one tensor, flat or nested as `shape` says, into
// `elements`, which is as large as they are, of any alignment. InvalidArgument for other elements
// than numbers that `dtype` can hold, for more or fewer, and for another nesting; `field` and the
// element's indexes are named.
absl::Status ReadJsonTensor(JsonReader& reader, const JsonField& field,
                            simdjson::ondemand::value data, norm::DType dtype, const Shape& shape,
                            MutableBytes elements);

}  // namespace normd

#endif  // NORMD_WIRE_JSON_TENSOR_H_
