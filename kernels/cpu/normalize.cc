#include "kernels/cpu/normalize.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>

#include "kernels/cpu/batch.h"
#include "kernels/cpu/simd_kernels.h"
#include "kernels/cpu/source.h"
#include "kernels/cpu/styles.h"
#include "kernels/cpu/workers.h"

namespace normd::norm::cpu {
namespace {

// Below this, waking another thread costs more than it saves.
constexpr std::int64_t kSerialBytes = 256 << 10;

CacheSizes DetectCaches() {
  CacheSizes sizes{1 << 20, 32 << 20};
#if defined(_SC_LEVEL2_CACHE_SIZE) && defined(_SC_LEVEL3_CACHE_SIZE)
  // 0 or -1 if the system does not know.
  if (const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE); bytes > 0) sizes.per_core_bytes = bytes;
  if (const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE); bytes > 0) sizes.last_level_bytes = bytes;
#endif
  return sizes;
}

// Requires validated segments.
std::int64_t TotalBytes(const NormSpec& spec, const Segment* segments, std::size_t count) {
  double total = 0;  // A sum of 63-bit sizes.
  for (std::size_t i = 0; i < count; ++i) {
    total += static_cast<double>(segments[i].samples) * static_cast<double>(segments[i].spatial) *
             static_cast<double>(spec.channels) * static_cast<double>(SizeOf(spec.dtype));
  }
  return static_cast<std::int64_t>(std::min(total, 9e18));
}

// Whether the specialised kernels compute it: y is of x's type, and the rows' moments are of a kind
// they compute.
bool IsSpecialised(const Batch& batch, const Segment& segment) {
  const NormSpec& spec = batch.spec;
  if (spec.quantization != Quantization::kNone || spec.combine_input != Combine::kNone)
    return false;
  // Without residual_out the sum would go to y, which may also be `other`.
  const bool joins = spec.combine_output != Combine::kNone;
  if (joins && HasSum(batch) && !spec.residual_out) return false;
  switch (spec.statistics) {
    case Statistics::kSumOfAbsolutes:
    case Statistics::kLargestAbsolute: return false;
    case Statistics::kGiven: return !IsModulated(spec);
    default: return spec.rows == Rows::kGroup || AreChannelsAdjacent(spec, segment);
  }
}

Params Prepare(const NormSpec& spec, const NormParams& params, const Segment* segments,
               std::size_t count) {
  Params prepared(spec, params);
  const bool elementwise = spec.rows == Rows::kPosition ||
                           std::any_of(segments, segments + count,
                                       [](const Segment& segment) { return segment.spatial == 1; });
  if (elementwise && spec.statistics != Statistics::kGiven) prepared.PrepareElements(spec.dtype);
  return prepared;
}

void NormalizeSegment(const Batch& batch, const NormParams& params, const Segment& segment) {
  if (batch.spec.style == Style::kMix || batch.spec.style == Style::kTensor) {
    NormalizeStyles(batch, params, segment);
  } else {
    NormalizeAnyLayout(batch, segment);
  }
}

// Uses the segment's own parameters, if it has any.
void NormalizeWithItsParams(const Batch& batch, const NormParams& params, const Segment& segment) {
  if (segment.samples == 0 || segment.spatial == 0) return;
  if (segment.params == nullptr) return NormalizeSegment(batch, params, segment);
  const Params own = Prepare(batch.spec, *segment.params, &segment, 1);
  NormalizeSegment(batch.With(batch.spec, own), *segment.params, segment);
}

}  // namespace

void NormalizeAnyLayout(const Batch& batch, const Segment& segment) {
  if (batch.spec.layout == Layout::kMixedRuns) {
    NormalizeMixedRuns(batch, segment);
  } else {
    NormalizeFirstOrLast(batch, segment);
  }
}

void NormalizeFirstOrLast(const Batch& batch, const Segment& segment) {
  if (!IsSpecialised(batch, segment)) return NormalizeStaged(batch, segment);
  // With one position, or one channel, both layouts are the same memory.
  const bool channels_last = batch.spec.layout == Layout::kChannelsLast &&
                             batch.spec.rows == Rows::kGroup && segment.spatial > 1 &&
                             batch.spec.channels > 1;
  const bool given = batch.spec.statistics == Statistics::kGiven;
  if (given && (channels_last || segment.spatial == 1)) {
    ForSamplesTogether(batch, segment,
                       [&](const Segment& part) { NormalizeGivenChannelsLast(batch, part); });
  } else if (channels_last) {
    ForSamplesTogether(batch, segment,
                       [&](const Segment& part) { NormalizeChannelsLast(batch, part); });
  } else {
    NormalizeContiguous(batch, segment);
  }
}

Workers::Workers(int max_threads)
    : threads(max_threads > 0 ? max_threads : tbb::this_task_arena::max_concurrency()),
      arena(threads),
      caches(DetectCaches()) {}

Executor::Executor(int max_threads) : workers_(std::make_unique<Workers>(max_threads)) {}
Executor::~Executor() = default;

int Executor::max_threads() const { return workers_->threads; }

Status Executor::Normalize(const NormSpec& spec, const NormParams& params, const Segment* segments,
                           std::size_t count) const {
  if (Status status = ValidateSpec(spec, params); !status.ok()) return status;
  if (Status status = ValidateSegments(spec, segments, count, InputAlignment::kByte); !status.ok())
    return status;
  if (Status status = CheckStyleIndexes(spec, segments, count); !status.ok()) return status;
  const std::int64_t bytes = TotalBytes(spec, segments, count);
  if (bytes == 0) return Status();
  try {
    const bool serial = workers_->threads == 1 || bytes <= kSerialBytes;
    const Params shared = Prepare(spec, params, segments, count);
    const Batch batch{.spec = spec,
                      .params = shared,
                      .kernels = &KernelsFor(spec.dtype),
                      .parallel = Parallel(serial ? 1 : workers_->threads),
                      .caches = workers_->caches,
                      .exceeds_caches = bytes > workers_->caches.last_level_bytes};
    const auto run = [&] {
      batch.parallel.For(static_cast<std::int64_t>(count), 1,
                         [&](std::int64_t begin, std::int64_t end) {
                           for (std::int64_t i = begin; i < end; ++i) {
                             NormalizeWithItsParams(batch, params, segments[i]);
                           }
                         });
    };
    if (serial) {
      run();
    } else {
      workers_->arena.execute(run);
    }
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "no memory for the workspace of a batch");
  } catch (const std::exception& error) {
    return Status(StatusCode::kOutOfMemory, std::string("task scheduler: ") + error.what());
  }
  return Status();
}

const char* SimdTargetName() { return InstructionSet(); }

}  // namespace normd::norm::cpu
