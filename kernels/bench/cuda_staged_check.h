// The check of a case with stages that a CUDA device has computed.

#ifndef NORMD_KERNELS_BENCH_CUDA_STAGED_CHECK_H_
#define NORMD_KERNELS_BENCH_CUDA_STAGED_CHECK_H_

#include <cstdint>

#include "kernels/bench/case.h"
#include "kernels/bench/data.h"

namespace normd::norm::bench {

// Fills in the largest error of whole samples, including the first and the last, of about
// `max_elements` together, which it copies to the host. `segment` is in device memory; the device
// has finished with it. Blocks.
Status MaxErrorOfStages(const Case& c, const HostParams& params, const Segment& segment,
                        std::int64_t max_elements, double* max_error, std::int64_t* checked);

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_CUDA_STAGED_CHECK_H_
