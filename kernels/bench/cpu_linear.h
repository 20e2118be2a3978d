// The fused layer on the CPU beside the matrix product, which bounds its speed.

#ifndef NORMD_KERNELS_BENCH_CPU_LINEAR_H_
#define NORMD_KERNELS_BENCH_CPU_LINEAR_H_

#include "kernels/bench/linear.h"

namespace normd::norm::bench {

// Device::MeasureLinear for the CPU.
Status MeasureLinearOnCpu(const Settings& settings, const LinearCase& c, LinearMeasurement* out);

}  // namespace normd::norm::bench

#endif  // NORMD_KERNELS_BENCH_CPU_LINEAR_H_
