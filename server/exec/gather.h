// A lane's access to a request's tensors. Tensors that a lane cannot read in place are copied here,
// once.

#ifndef NORMD_SERVER_EXEC_GATHER_H_
#define NORMD_SERVER_EXEC_GATHER_H_

#include <cstddef>

#include "absl/status/status.h"
#include "server/batching/request.h"
#include "server/exec/memory_access.h"

namespace normd {

// Checks the memory for a lane with this access. InvalidArgument, naming the tensor, the memory and
// what was wanted, for a tensor on a device that the lane cannot address, and for an input on its
// own device unless it lies there in one piece, aligned to its element: the host can copy neither.
//
// Internal, naming the field and the sizes, unless each input and each named output has the
// geometry's bytes and the output is aligned to its element. The front ends check requests; this
// keeps a mistake of theirs from becoming a stray write.
absl::Status CheckMemory(const Request& request, const MemoryAccess& access);

// The first byte of inputs[index] if its views are adjacent in memory and begin aligned to the
// element, so that it can be computed in place; null otherwise, and for an empty input.
const std::byte* InPlaceInput(const Request& request, std::size_t index);

// The memory that the request names for an output; empty: none.
MutableBytes NamedOutput(const Request& request, std::size_t index);

// Copies inputs[index], which lies in host memory, to `to`, which has room for its bytes.
void GatherInput(const Request& request, std::size_t index, std::byte* to);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_GATHER_H_
