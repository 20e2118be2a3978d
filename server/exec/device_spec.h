// The value of --device.

#ifndef NORMD_SERVER_EXEC_DEVICE_SPEC_H_
#define NORMD_SERVER_EXEC_DEVICE_SPEC_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace normd {

struct DeviceSpec {
  enum class Kind { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;
  std::vector<int> ordinals;  // For kCuda; empty: every device.
};

// "auto", "cpu", "cuda" or "cuda:0,1". InvalidArgument for anything else, and for an ordinal that
// is named twice.
absl::StatusOr<DeviceSpec> ParseDevice(absl::string_view text);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_SPEC_H_
