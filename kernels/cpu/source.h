// The normalized values: x, or the result of the stages before the statistics.

#ifndef NORMD_KERNELS_CPU_SOURCE_H_
#define NORMD_KERNELS_CPU_SOURCE_H_

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/batch.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/loop_arguments.h"

namespace normd::norm::cpu {

// Where an element lies: how many precede it in tensors whose samples lie together, in x and in y.
struct Place {
  Place(std::int64_t element) : together(element), x(element), y(element) {}  // NOLINT: no gaps.

  std::int64_t together;
  std::int64_t x;
  std::int64_t y;
};

// Whether the normalized values are rounded to x's type first.
inline bool HasSum(const Batch& batch) {
  return batch.spec.residual || batch.params.input_bias.present();
}

// Calls visit(run, offset) for the runs that make up `count` elements of the normalized values, of
// one sample if there are gaps, `offset` elements from `place` on. It may change the run.
template <class Visit>
void ForInputRuns(const Batch& batch, const Segment& segment, const Place& place,
                  std::int64_t count, const Visit& visit) {
  const std::int64_t first = place.together;
  const NormSpec& spec = batch.spec;
  const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
  InputRun run;
  run.combine = spec.combine_input;
  const auto visit_part = [&](std::int64_t at, std::int64_t part) {
    run.count = part;
    run.rounded = HasSum(batch);
    run.x = ByteAt(segment.x, (place.x + at - first) * element);
    run.residual = ByteAt(segment.residual, at * element);
    if (spec.combine_input != Combine::kNone) run.other = ByteAt(segment.other, at * element);
    visit(run, at - first);
  };
  if (batch.params.element_input_bias == nullptr && !spec.gate) return visit_part(first, count);
  run.per_element = AreChannelsAdjacent(spec, segment);
  const std::int64_t together = run.per_element ? spec.channels : segment.spatial;
  const std::int64_t sample_elements = spec.channels * segment.spatial;
  for (std::int64_t at = first; at < first + count;) {
    const std::int64_t end = std::min(first + count, (at / together + 1) * together);
    const std::int64_t channel =
        run.per_element ? at % spec.channels : at / segment.spatial % spec.channels;
    const std::int64_t own = at / sample_elements * spec.channels + channel;
    run.bias = ByteAt(batch.params.element_input_bias, channel * batch.acc_bytes());
    run.gate = ByteAt(segment.gate, own * element);
    visit_part(at, end - at);
    at = end;
  }
}

// Where the normalized values lie: sums lie where MakeSource writes them.
inline const void* Source(const Batch& batch, const Segment& segment) {
  if (!HasSum(batch)) return segment.x;
  return batch.spec.residual_out ? segment.residual_out : segment.y;
}
inline const char* SourceAt(const Batch& batch, const Segment& segment, const Place& place) {
  const std::int64_t at = !HasSum(batch)            ? place.x
                          : batch.spec.residual_out ? place.together
                                                    : place.y;
  return static_cast<const char*>(Source(batch, segment)) +
         at * static_cast<std::int64_t>(SizeOf(batch.spec.dtype));
}

// Computes `count` elements of Source, of one sample if there are gaps; call it before they are
// read.
inline void MakeSource(const Batch& batch, const Segment& segment, const Place& place,
                       std::int64_t count) {
  if (!HasSum(batch)) return;
  const auto element = static_cast<std::int64_t>(SizeOf(batch.spec.dtype));
  char* const sums = const_cast<char*>(SourceAt(batch, segment, place));
  ForInputRuns(batch, segment, place, count, [&](InputRun& run, std::int64_t offset) {
    run.sum = sums + offset * element;
    run.rounded = false;  // Writing it rounds it.
    batch.kernels->sum(run);
  });
}

// A run with the batch's epilogue.
inline Run MakeRun(const Batch& batch, const Segment& segment, const Place& place,
                   std::int64_t count) {
  const auto element = static_cast<std::int64_t>(SizeOf(batch.spec.dtype));
  Run run;
  run.x = SourceAt(batch, segment, place);
  run.y = static_cast<char*>(segment.y) + place.y * element;
  run.count = count;
  run.epilogue = {batch.spec.activation, batch.spec.leaky_slope};
  run.combine = batch.spec.combine_output;
  if (run.combine != Combine::kNone) {
    run.other = ByteAt(segment.other, place.together * element);
  }
  // In place, the lines are in the cache already, and a streaming store would only evict them.
  run.stream =
      batch.exceeds_caches && Source(batch, segment) != segment.y && segment.other != segment.y;
  return run;
}

}  // namespace normd::norm::cpu

#endif  // NORMD_KERNELS_CPU_SOURCE_H_
