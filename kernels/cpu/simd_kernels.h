// The vector loops of the CPU backend: one table of functions per DType, selected at run time for
// this machine's instruction set. They are single-threaded, allocate nothing and validate nothing.
//
// y is aligned to its element, x begins at any byte; x == y is allowed everywhere. Results never
// depend on alignment.

#ifndef NORMD_KERNELS_CPU_SIMD_KERNELS_H_
#define NORMD_KERNELS_CPU_SIMD_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/loop_arguments.h"
#include "kernels/cpu/moments.h"
#include "kernels/types.h"

namespace normd::norm::cpu {

struct SimdKernels {
  // Writes run.sum, without `other`.
  void (*sum)(const InputRun& run);

  // The moments of `count` > 0 contiguous elements, merged over chunks of kChunkElements. Without
  // `centered` the mean is 0 and m2 the sum of squares.
  Moments (*moments)(const void* x, std::int64_t count, bool centered);
  // The moments of each channel of a block, to mean[channels] and m2[channels].
  void (*channel_moments)(const ChannelBlock& block, bool centered, double* mean, double* m2);

  // The mean and the reciprocal deviation of each row, to mean[kMaxShortRows] and
  // rstd[kMaxShortRows], with the bits that `moments` leads to. rstd is -1 where the row needs
  // `moments` itself.
  void (*measure_rows)(const ShortRows& rows, double* mean, double* rstd);

  void (*apply)(const Run& run, const ChannelRuns& channels);
  // The same run of `rows` rows.
  void (*apply_elements)(const Run& run, const RunSteps& steps, const ElementAffine* affines,
                         std::int64_t rows);
  void (*apply_cyclic)(const Run& run, const CyclicAffine& affine);

  // As `apply` and `apply_elements` of one row, without activation; also return the moments of
  // another chunk, as `moments`.
  Moments (*apply_along)(const Run& run, const ChannelRuns& channels, const NextChunk& next);
  Moments (*apply_elements_along)(const Run& run, const ElementAffine& affine,
                                  const NextChunk& next);
};

const SimdKernels& KernelsFor(DType dtype);

// What KernelsFor returns on a machine with InstructionSet() that has no special instructions for a
// dtype.
const SimdKernels& PortableKernelsFor(DType dtype);

// The name of the instruction set that KernelsFor chooses, such as "AVX3".
const char* InstructionSet();

// Orders streamed stores before later ones.
void FlushStreams();

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_SIMD_KERNELS_H_
