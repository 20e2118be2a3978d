// Which memory a lane reads and writes where it lies.

#ifndef NORMD_SERVER_EXEC_MEMORY_ACCESS_H_
#define NORMD_SERVER_EXEC_MEMORY_ACCESS_H_

#include <optional>

#include "base/memory.h"

namespace normd {

// Tensors in other memory of the host are copied once, to or from memory that the lane takes; see
// gather.h. The host cannot touch a device's memory, so a tensor there needs a lane that can.
struct MemoryAccess {
  bool host = true;
  bool pinned = true;
  std::optional<int> device;

  bool Includes(const MemoryPlace& place) const {
    switch (place.kind) {
      case MemoryKind::kHost: return host;
      case MemoryKind::kPinned: return pinned;
      case MemoryKind::kDevice: break;
    }
    return device == place.device;
  }
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_MEMORY_ACCESS_H_
