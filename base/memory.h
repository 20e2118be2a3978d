// The kinds of memory: they decide who can read and write the bytes.

#ifndef NORMD_BASE_MEMORY_H_
#define NORMD_BASE_MEMORY_H_

#include <cstdint>
#include <string>

namespace normd {

enum class MemoryKind : std::uint8_t {
  kHost,    // Memory of this process.
  kPinned,  // Page-locked host memory: devices can also address it, by the same pointer.
  kDevice,  // On a device; the host must not touch it.
};

struct MemoryPlace {
  MemoryKind kind = MemoryKind::kHost;
  int device = 0;  // With kDevice: the device, as this machine numbers it.

  bool OnHost() const { return kind != MemoryKind::kDevice; }
  // "host memory", "pinned memory", "memory of device 1"
  std::string ToString() const;

  friend bool operator==(const MemoryPlace&, const MemoryPlace&) = default;
};

}  // namespace normd

#endif  // NORMD_BASE_MEMORY_H_
