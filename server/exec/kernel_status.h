// The kernels' status as the server's.

#ifndef NORMD_SERVER_EXEC_KERNEL_STATUS_H_
#define NORMD_SERVER_EXEC_KERNEL_STATUS_H_

#include "absl/status/status.h"
#include "kernels/status.h"

namespace normd {

// For a call on a batch that the server has already validated: a kernel that finds an argument
// wrong is the server's mistake (Internal). Out of memory is ResourceExhausted; a limit of the
// device or the build is FailedPrecondition.
absl::Status FromKernel(const norm::Status& status);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_KERNEL_STATUS_H_
