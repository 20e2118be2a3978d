// CUDA's implementation of base/page_locker.h.

#ifndef NORMD_SERVER_EXEC_CUDA_CUDA_PAGE_LOCKER_H_
#define NORMD_SERVER_EXEC_CUDA_CUDA_PAGE_LOCKER_H_

#include <memory>
#include <vector>

#include "base/page_locker.h"

namespace normd {

// For the devices that the server computes on, at least one.
std::unique_ptr<PageLocker> CreateCudaPageLocker(std::vector<int> used);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_CUDA_CUDA_PAGE_LOCKER_H_
