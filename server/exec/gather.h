// A request's input as a lane reads it.

#ifndef NORMD_SERVER_EXEC_GATHER_H_
#define NORMD_SERVER_EXEC_GATHER_H_

#include <cstddef>

#include "absl/status/status.h"
#include "server/batching/request.h"

namespace normd {

// Internal, naming the field and the sizes, unless each input has as many bytes as the geometry
// says and each output that is named too, and is aligned to its element. The front ends check what
// clients send; this keeps a mistake of theirs from becoming a stray write.
absl::Status CheckMemory(const Request& request);

// The first byte of inputs[index] if its views lie in memory one after the other and begin aligned
// to the element, so that it can be computed where it is; null otherwise, and for an empty input.
const std::byte* InPlaceInput(const Request& request, std::size_t index);

// The memory that the request names for an output; empty: none.
MutableBytes NamedOutput(const Request& request, std::size_t index);

// Copies inputs[index] to `to`, which has room for its bytes.
void GatherInput(const Request& request, std::size_t index, std::byte* to);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_GATHER_H_
