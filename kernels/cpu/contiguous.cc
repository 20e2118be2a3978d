// Rows that are contiguous in memory.
//
// Two strategies give the same bits, because a row's moments are always merged over the same chunks
// and parts in the same order. Either whole rows are spread over cores, and each core reads a row
// into its own cache once; or, if rows are too few or too long, each row's parts are.
//
// Rows that exceed the caches are written while the next row is read: reading alone and writing
// alone each leave half of the memory's capacity idle. Short rows in the caches are computed
// several at a time.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/batch.h"
#include "kernels/cpu/row_places.h"
#include "kernels/cpu/sample_affine.h"
#include "kernels/cpu/source.h"

namespace normd::norm::cpu {
namespace {

// Rows that are computed together: their elements stay in a second-level cache, and the gamma and
// beta of a tile in a first-level one.
constexpr std::int64_t kMaxTogether = 4;
constexpr std::int64_t kTogetherBytes = 32 << 10;
constexpr std::int64_t kTileElements = 2048;
// Shorter runs of one channel are not worth overlapping with the next row's sums.
constexpr std::int64_t kMinRunElements = 256;
// Elementwise rows also read gamma and beta: four arrays that must fit a first-level cache
// together.
constexpr std::int64_t kMaxElementwiseElements = 2048;

class ContiguousRows {
 public:
  ContiguousRows(const Batch& batch, const Segment& segment)
      : batch_(batch),
        segment_(segment),
        places_(batch.spec, segment),
        given_(batch.spec.statistics == Statistics::kGiven),
        elementwise_(places_.channel_elements() == 1),
        length_(places_.length()) {}

  std::int64_t count() const { return places_.count(); }
  std::int64_t length() const { return length_; }
  std::int64_t parts() const { return places_.parts(); }
  bool given() const { return given_; }

  // Whether a row can be written while the next one is read.
  bool HasTwoAtATime() const {
    if (given_ || batch_.spec.activation != Activation::kNone) return false;
    if (!elementwise_) return places_.channel_elements() >= kMinRunElements;
    return length_ >= kMinRunElements && length_ <= kMaxElementwiseElements;
  }

  Moments PartMoments(std::int64_t row, std::int64_t part) const {
    const std::int64_t begin = part * kPartElements;
    const std::int64_t count = std::min(kPartElements, length_ - begin);
    MakeSource(batch_, segment_, places_.At(row, begin), count);
    return batch_.kernels->moments(At(row, begin), count, IsCentered(batch_.spec));
  }

  // Merges fetch(0), fetch(1), ... of all parts of a row.
  template <class Fetch>
  RowStatistics MergeParts(std::int64_t row, const Fetch& fetch) const {
    Moments moments;
    for (std::int64_t part = 0; part < parts(); ++part) moments = Merge(moments, fetch(part));
    const RowStatistics statistics = Finish(moments, batch_.spec);
    WriteStatistics(batch_.spec, segment_, places_.OutputRow(row), statistics);
    return statistics;
  }

  void ApplyPart(std::int64_t row, const RowStatistics& statistics, std::int64_t part) const {
    const std::int64_t begin = part * kPartElements;
    Apply(row, statistics, begin, std::min(begin + kPartElements, length_));
  }

  // ApplyPart, overlapped with PartMoments of the next row.
  Moments ApplyPartAlong(std::int64_t row, const RowStatistics& statistics,
                         std::int64_t part) const {
    const std::int64_t end = std::min((part + 1) * kPartElements, length_);
    Moments next;
    for (std::int64_t begin = part * kPartElements; begin < end; begin += kChunkElements) {
      const std::int64_t count = std::min(kChunkElements, end - begin);
      MakeSource(batch_, segment_, places_.At(row + 1, begin), count);
      next = Merge(next, ApplyChunkAlong(row, statistics, begin, count));
    }
    return next;
  }

  void Normalize(std::int64_t begin, std::int64_t end) const {
    const std::int64_t together = RowsTogether();
    if (together > 1) {
      for (std::int64_t row = begin; row < end; row += together) {
        NormalizeTogether(row, std::min(end, row + together));
      }
      return;
    }
    const bool along = HasTwoAtATime();
    RowStatistics statistics;
    for (std::int64_t row = begin; row < end; ++row) {
      if (!given_ && (!along || row == begin)) {
        statistics = MergeParts(row, [&](std::int64_t part) { return PartMoments(row, part); });
      }
      if (along && row + 1 < end) {
        statistics = MergeParts(
            row + 1, [&](std::int64_t part) { return ApplyPartAlong(row, statistics, part); });
      } else {
        Apply(row, statistics, 0, length_);
      }
    }
  }

 private:
  std::int64_t RowsTogether() const {
    if (given_ || batch_.exceeds_caches || (elementwise_ && HasTwoAtATime())) return 1;
    const std::int64_t row_bytes = length_ * static_cast<std::int64_t>(SizeOf(batch_.spec.dtype));
    return std::min(kMaxTogether, kTogetherBytes / row_bytes);
  }

  // The statistics of a row are a chain of dependent steps, during which the processor can sum the
  // next row; gamma and beta are read once for all.
  void NormalizeTogether(std::int64_t begin, std::int64_t end) const {
    RowStatistics statistics[kMaxTogether];
    for (std::int64_t row = begin; row < end; ++row) {
      statistics[row - begin] =
          MergeParts(row, [&](std::int64_t part) { return PartMoments(row, part); });
    }
    const std::int64_t tile = elementwise_ ? kTileElements : length_;
    for (std::int64_t at = 0; at < length_; at += tile) {
      for (std::int64_t row = begin; row < end; ++row) {
        Apply(row, statistics[row - begin], at, std::min(at + tile, length_));
      }
    }
  }

  const void* At(std::int64_t row, std::int64_t element) const {
    return MakeRun(batch_, segment_, places_.At(row, element), 0).x;
  }

  // Elements [begin, end) of the row.
  void Apply(std::int64_t row, const RowStatistics& statistics, std::int64_t begin,
             std::int64_t end) const {
    // With given statistics, nothing has read the row before.
    if (given_) MakeSource(batch_, segment_, places_.At(row, begin), end - begin);
    places_.ForChannels(
        row, begin, end, [&](std::int64_t at, std::int64_t count, std::int64_t channel) {
          const Run run = MakeRun(batch_, segment_, places_.At(row, at), count);
          if (elementwise_) {
            batch_.kernels->apply_elements(run, ElementsOf(row, statistics, channel));
          } else {
            const RowStatistics own = given_ ? GivenStatistics(batch_, channel) : statistics;
            batch_.kernels->apply(run, ChannelOf(row, own, channel));
          }
        });
  }

  Moments ApplyChunkAlong(std::int64_t row, const RowStatistics& statistics, std::int64_t begin,
                          std::int64_t count) const {
    const Run run = MakeRun(batch_, segment_, places_.At(row, begin), count);
    const NextChunk next{At(row + 1, begin), count, IsCentered(batch_.spec)};
    const std::int64_t first_channel = places_.FirstChannel(row);
    if (elementwise_) {
      return batch_.kernels->apply_elements_along(
          run, ElementsOf(row, statistics, first_channel + begin), next);
    }
    const std::int64_t elements = places_.channel_elements();
    const std::int64_t first = begin / elements;
    const std::int64_t last = (begin + count - 1) / elements;
    Affine affines[kChunkElements / kMinRunElements + 2];
    for (std::int64_t i = first; i <= last; ++i) {
      affines[i - first] = ChannelOf(row, statistics, first_channel + i);
    }
    return batch_.kernels->apply_along(run, {affines, (first + 1) * elements - begin, elements},
                                       next);
  }

  Affine ChannelOf(std::int64_t row, const RowStatistics& statistics, std::int64_t channel) const {
    return ChannelAffine(batch_, segment_, statistics, places_.SampleOf(row), channel);
  }
  ElementAffine ElementsOf(std::int64_t row, const RowStatistics& statistics,
                           std::int64_t channel) const {
    return ElementsFrom(batch_, segment_, statistics, places_.SampleOf(row), channel);
  }

  const Batch& batch_;
  const Segment& segment_;
  const RowPlaces places_;
  const bool given_;
  const bool elementwise_;  // Each element is a channel.
  const std::int64_t length_;
};

// Spreading rows over cores leaves cores idle when few rows remain, and needs room in the shared
// cache for a row per core.
bool SplitsRows(const Batch& batch, const ContiguousRows& rows) {
  const std::int64_t threads = batch.parallel.threads();
  if (threads == 1 || rows.parts() == 1) return false;
  if (rows.count() < 4 * threads) return true;
  const std::int64_t row_bytes =
      rows.length() * static_cast<std::int64_t>(SizeOf(batch.spec.dtype));
  return row_bytes > batch.caches.per_core_bytes &&
         row_bytes > batch.caches.last_level_bytes / (2 * threads);
}

void NormalizeSplit(const Batch& batch, const ContiguousRows& rows) {
  const bool along = rows.HasTwoAtATime();
  std::vector<Moments> parts(rows.given() ? 0 : static_cast<std::size_t>(rows.parts()));
  // Runs visit(part) for every part, over the cores; returned moments go to their slots.
  const auto for_parts = [&](auto visit) {
    batch.parallel.For(rows.parts(), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) visit(part);
      FlushStreams();
    });
  };
  const auto slot = [&](std::int64_t part) -> Moments& {
    return parts[static_cast<std::size_t>(part)];
  };
  RowStatistics statistics;
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    if (!rows.given() && (!along || row == 0)) {
      for_parts([&](std::int64_t part) { slot(part) = rows.PartMoments(row, part); });
    }
    if (!rows.given()) statistics = rows.MergeParts(row, slot);
    if (along && row + 1 < rows.count()) {
      for_parts(
          [&](std::int64_t part) { slot(part) = rows.ApplyPartAlong(row, statistics, part); });
    } else {
      for_parts([&](std::int64_t part) { rows.ApplyPart(row, statistics, part); });
    }
  }
}

}  // namespace

void NormalizeContiguous(const Batch& batch, const Segment& segment) {
  const ContiguousRows rows(batch, segment);
  if (SplitsRows(batch, rows)) {
    NormalizeSplit(batch, rows);
    return;
  }
  const std::int64_t row_bytes =
      rows.length() * static_cast<std::int64_t>(SizeOf(batch.spec.dtype));
  const std::int64_t grain = std::max<std::int64_t>(1, kTaskBytes / row_bytes);
  batch.parallel.For(rows.count(), grain, [&](std::int64_t begin, std::int64_t end) {
    rows.Normalize(begin, end);
    FlushStreams();
  });
}

}  // namespace normd::norm::cpu
