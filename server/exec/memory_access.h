// The memory that a lane reads and writes in place.

#ifndef NORMD_SERVER_EXEC_MEMORY_ACCESS_H_
#define NORMD_SERVER_EXEC_MEMORY_ACCESS_H_

#include <optional>

#include "base/memory.h"

namespace normd {

// Tensors in other host memory are copied once, to or from the lane's memory; see gather.h. The
// host cannot touch device memory, so a tensor there needs a lane that can.
struct MemoryAccess {
  bool host = true;  // All of it; false: only what is pinned.
  std::optional<int> device;

  bool Includes(const MemoryPlace& place) const {
    switch (place.kind) {
      case MemoryKind::kHost: return host;
      case MemoryKind::kPinned: return true;
      case MemoryKind::kDevice: break;
    }
    return device == place.device;
  }
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_MEMORY_ACCESS_H_
