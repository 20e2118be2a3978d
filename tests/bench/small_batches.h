// How a small batch may cross the link to a GPU and come back.

#ifndef NORMD_TESTS_BENCH_SMALL_BATCHES_H_
#define NORMD_TESTS_BENCH_SMALL_BATCHES_H_

namespace normd {

// Prints, for sizes from 1 KiB to 8 MiB, the median microseconds from the first call of the runtime
// until the host sees that the result is in its memory, one batch at a time on device 0:
//
//   mapped   one launch whose kernel reads and writes pinned memory
//   copies   copy in, launch, copy out
//   graph    the latter, captured before and replayed over the same memory. A server would also
//   have
//            to write each batch's addresses and shapes into the graph, which is not counted.
//   mapped graph   the former, likewise
void PrintSmallBatches();

}  // namespace normd

#endif  // NORMD_TESTS_BENCH_SMALL_BATCHES_H_
