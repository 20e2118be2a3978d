// Events of CUDA IPC behind the seam of base/shared_device_events.h.

#ifndef NORMD_SERVER_EXEC_CUDA_CUDA_SHARED_EVENTS_H_
#define NORMD_SERVER_EXEC_CUDA_CUDA_SHARED_EVENTS_H_

#include <memory>

#include "base/shared_device_events.h"

namespace normd {

std::unique_ptr<SharedDeviceEvents> CreateCudaSharedEvents();

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CUDA_CUDA_SHARED_EVENTS_H_
