// The result of a kernel call. The kernels stand alone, so they carry their own small type; the
// server turns it into absl::Status in one place (server/exec).

#ifndef NORMD_KERNELS_STATUS_H_
#define NORMD_KERNELS_STATUS_H_

#include <string>
#include <utility>

namespace normd::norm {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument = 1,  // The call is wrong whatever the machine.
  kUnsupported = 2,      // The call is right, but this device or build cannot do it.
  kOutOfMemory = 3,      // The workspace is too small, or an allocation failed.
  kDeviceError = 4,      // The device reported an error; its context may be unusable.
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  // Names the field, what came and what was wanted. Empty when ok().
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

}  // namespace normd::norm

#endif  // NORMD_KERNELS_STATUS_H_
