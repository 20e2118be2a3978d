#include "base/memory.h"

#include "absl/strings/str_cat.h"

namespace normd {

std::string MemoryPlace::ToString() const {
  switch (kind) {
    case MemoryKind::kHost: return "host memory";
    case MemoryKind::kPinned: return "pinned memory";
    case MemoryKind::kDevice: break;
  }
  return absl::StrCat("memory of device ", device);
}

}  // namespace normd
