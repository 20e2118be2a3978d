// Rows that are contiguous in memory.
//
// Two strategies give the same bits, because a row's moments are always merged over the same chunks
// and parts in the same order. Either whole rows are spread over cores, and each core reads a row
// into its own cache once; or, if rows are too few or too long, each row's parts are.
//
// Rows that exceed the caches are written while the next row is read: reading alone and writing
// alone each leave half of the memory's capacity idle. Short rows are computed several at a time:
// their statistics are finished together, and gamma and beta are read once for all.

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
constexpr std::int64_t kTogetherBytes = 64 << 10;
constexpr std::int64_t kTileElements = 2048;
// Shorter runs of one channel are not worth overlapping with the next row's sums.
constexpr std::int64_t kMinRunElements = 256;
// Elementwise rows also read gamma and beta: four arrays that must fit a first-level cache
// together. Segments smaller than so many second-level caches are faster several rows at a time.
constexpr std::int64_t kMaxElementwiseElements = 2048;
constexpr std::int64_t kSecondLevelCaches = 4;
// The channels of one call of `apply`, and of a task that fills a table of channels.
constexpr std::int64_t kChannelsTogether = 8;
constexpr std::int64_t kTableGrain = 1024;

class ContiguousRows {
 public:
  ContiguousRows(const Batch& batch, const Segment& segment)
      : batch_(batch),
        segment_(segment),
        places_(batch.spec, segment),
        given_(batch.spec.statistics == Statistics::kGiven),
        elementwise_(places_.channel_elements() == 1),
        length_(places_.length()) {
    if (!given_ || segment.samples == 1) return;
    given_affines_.resize(static_cast<std::size_t>(batch.spec.channels));
    batch.parallel.For(batch.spec.channels, kTableGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t channel = begin; channel < end; ++channel) {
        given_affines_[static_cast<std::size_t>(channel)] = GivenAffine(channel);
      }
    });
  }

  std::int64_t count() const { return places_.count(); }
  std::int64_t length() const { return length_; }
  std::int64_t parts() const { return places_.parts(); }
  std::int64_t RowBytes() const {
    return length_ * static_cast<std::int64_t>(SizeOf(batch_.spec.dtype));
  }
  bool given() const { return given_; }

  // Whether a row can be written while the next one is read.
  bool HasTwoAtATime() const {
    if (given_ || batch_.spec.activation != Activation::kNone) return false;
    if (!elementwise_) return places_.channel_elements() >= kMinRunElements;
    return count() * RowBytes() > kSecondLevelCaches * batch_.caches.per_core_bytes &&
           length_ >= kMinRunElements && length_ <= kMaxElementwiseElements;
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
    if (given_) return NormalizeGiven(begin, end);
    if (const std::int64_t together = RowsTogether(); together > 1 && end - begin > 1) {
      for (std::int64_t row = begin; row < end;) {
        const std::int64_t stop = std::min({end, row + together, places_.EndOfEven(row)});
        NormalizeTogether(row, stop);
        row = stop;
      }
      return;
    }
    const bool along = HasTwoAtATime();
    RowStatistics statistics;
    for (std::int64_t row = begin; row < end; ++row) {
      if (!along || row == begin) {
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
    if (elementwise_ ? HasTwoAtATime() : batch_.exceeds_caches) return 1;
    // A sum also reads its terms.
    const std::int64_t bytes = HasSum(batch_) ? kTogetherBytes / 4 : kTogetherBytes;
    return std::min(kMaxShortRows, bytes / RowBytes());
  }

  void NormalizeTogether(std::int64_t begin, std::int64_t end) const {
    RowStatistics statistics[kMaxShortRows];
    FindStatistics(begin, end, statistics);
    if (!elementwise_) {
      for (std::int64_t row = begin; row < end; ++row) {
        ApplyChannels(row, statistics[row - begin], 0, length_);
      }
      return;
    }
    for (std::int64_t at = 0; at < length_; at += kTileElements) {
      ApplyElements(begin, end, statistics, at, std::min(at + kTileElements, length_));
    }
  }

  // Those of short rows.
  void FindStatistics(std::int64_t begin, std::int64_t end, RowStatistics* statistics) const {
    double mean[kMaxShortRows];
    double rstd[kMaxShortRows];
    for (std::int64_t row = begin; row < end; ++row) {
      MakeSource(batch_, segment_, places_.At(row, 0), length_);
    }
    const bool centered = IsCentered(batch_.spec);
    const bool root = batch_.spec.statistics == Statistics::kRootOfSquares;
    batch_.kernels->measure_rows({At(begin, 0), end - begin, StepsFrom(begin, end).x, length_,
                                  centered, root, root ? 0 : batch_.spec.eps},
                                 mean, rstd);
    for (std::int64_t i = 0; i < end - begin; ++i) {
      statistics[i] = {mean[i], root ? std::min(rstd[i], 1 / batch_.spec.eps) : rstd[i]};
      if (rstd[i] < 0) {
        statistics[i] =
            Finish(batch_.kernels->moments(At(begin + i, 0), length_, centered), batch_.spec);
      }
      WriteStatistics(batch_.spec, segment_, places_.OutputRow(begin + i), statistics[i]);
    }
  }

  // From each of these rows to the next.
  RunSteps StepsFrom(std::int64_t begin, std::int64_t end) const {
    if (end - begin == 1) return {};
    const Place here = places_.At(begin, 0);
    const Place next = places_.At(begin + 1, 0);
    return {SourceAt(batch_, segment_, next) - SourceAt(batch_, segment_, here),
            (next.y - here.y) * (RowBytes() / length_), RowBytes()};
  }

  void NormalizeGiven(std::int64_t begin, std::int64_t end) const {
    const std::int64_t together = std::max<std::int64_t>(1, kChunkElements / length_);
    for (std::int64_t row = begin; row < end;) {
      const std::int64_t left = batch_.spec.channels - places_.FirstChannel(row);
      const std::int64_t most = given_affines_.empty() ? kChannelsTogether : left;
      const std::int64_t rows = std::min({end - row, together, left, most});
      ApplyGiven(row, 0, rows * length_);
      row += rows;
    }
  }

  const void* At(std::int64_t row, std::int64_t element) const {
    return MakeRun(batch_, segment_, places_.At(row, element), 0).x;
  }

  // Elements [begin, end) of the row.
  void Apply(std::int64_t row, const RowStatistics& statistics, std::int64_t begin,
             std::int64_t end) const {
    if (given_) {
      ApplyGiven(row, begin, end);
    } else if (elementwise_) {
      const ElementAffine affine = ElementsOf(row, statistics, begin);
      batch_.kernels->apply_elements(MakeRun(batch_, segment_, places_.At(row, begin), end - begin),
                                     {}, &affine, 1);
    } else {
      ApplyChannels(row, statistics, begin, end);
    }
  }

  // The same with given statistics, which may go on in further rows of the sample.
  void ApplyGiven(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    const Place place = places_.At(row, begin);
    MakeSource(batch_, segment_, place, end - begin);  // Nothing has read the row before.
    Affine own[kChannelsTogether];
    const Affine* affines = own;
    const std::int64_t first = places_.FirstChannel(row);
    if (given_affines_.empty()) {
      for (std::int64_t i = 0; i * length_ < end; ++i) own[i] = GivenAffine(first + i);
    } else {
      affines = given_affines_.data() + first;
    }
    batch_.kernels->apply(MakeRun(batch_, segment_, place, end - begin),
                          {affines, length_ - begin, length_});
  }

  Affine GivenAffine(std::int64_t channel) const {
    return ChannelAffine(batch_, segment_, GivenStatistics(batch_, channel), 0, channel);
  }

  // Elements [at, stop) of each of the rows.
  void ApplyElements(std::int64_t begin, std::int64_t end, const RowStatistics* statistics,
                     std::int64_t at, std::int64_t stop) const {
    ElementAffine affines[kMaxShortRows];
    for (std::int64_t row = begin; row < end; ++row) {
      affines[row - begin] = ElementsOf(row, statistics[row - begin], at);
    }
    batch_.kernels->apply_elements(MakeRun(batch_, segment_, places_.At(begin, at), stop - at),
                                   StepsFrom(begin, end), affines, end - begin);
  }

  ElementAffine ElementsOf(std::int64_t row, const RowStatistics& statistics,
                           std::int64_t at) const {
    return ElementsFrom(batch_, segment_, statistics, places_.SampleOf(row),
                        places_.FirstChannel(row) + at);
  }

  // Elements [begin, end) of the row.
  void ApplyChannels(std::int64_t row, const RowStatistics& statistics, std::int64_t begin,
                     std::int64_t end) const {
    Affine affines[kChannelsTogether];
    const std::int64_t elements = places_.channel_elements();
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t stop = std::min(end, (at / elements + kChannelsTogether) * elements);
      batch_.kernels->apply(MakeRun(batch_, segment_, places_.At(row, at), stop - at),
                            FindRuns(row, statistics, at, stop, affines));
      at = stop;
    }
  }

  Moments ApplyChunkAlong(std::int64_t row, const RowStatistics& statistics, std::int64_t begin,
                          std::int64_t count) const {
    const Run run = MakeRun(batch_, segment_, places_.At(row, begin), count);
    const NextChunk next{At(row + 1, begin), count, IsCentered(batch_.spec)};
    if (elementwise_) {
      return batch_.kernels->apply_elements_along(run, ElementsOf(row, statistics, begin), next);
    }
    Affine affines[kChunkElements / kMinRunElements + 2];
    return batch_.kernels->apply_along(
        run, FindRuns(row, statistics, begin, begin + count, affines), next);
  }

  // Writes the affine steps of the channels of elements [begin, end).
  ChannelRuns FindRuns(std::int64_t row, const RowStatistics& statistics, std::int64_t begin,
                       std::int64_t end, Affine* affines) const {
    const std::int64_t elements = places_.channel_elements();
    const std::int64_t first = begin / elements;
    const std::int64_t sample = places_.SampleOf(row);
    const std::int64_t channel = places_.FirstChannel(row);
    for (std::int64_t i = first; i <= (end - 1) / elements; ++i) {
      affines[i - first] = ChannelAffine(batch_, segment_, statistics, sample, channel + i);
    }
    return {affines, (first + 1) * elements - begin, elements};
  }

  const Batch& batch_;
  const Segment& segment_;
  const RowPlaces places_;
  const bool given_;
  const bool elementwise_;  // Each element is a channel.
  const std::int64_t length_;
  std::vector<Affine> given_affines_;  // Each channel's, with given statistics of several samples.
};

// Spreading rows over cores leaves cores idle when few rows remain, and needs room in the shared
// cache for a row per core.
bool SplitsRows(const Batch& batch, const ContiguousRows& rows) {
  const std::int64_t threads = batch.parallel.threads();
  if (threads == 1 || rows.parts() == 1) return false;
  if (rows.count() < 4 * threads) return true;
  return rows.RowBytes() > batch.caches.per_core_bytes &&
         rows.RowBytes() > batch.caches.last_level_bytes / (2 * threads);
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
  const std::int64_t grain = std::max<std::int64_t>(1, kTaskBytes / rows.RowBytes());
  batch.parallel.For(rows.count(), grain, [&](std::int64_t begin, std::int64_t end) {
    rows.Normalize(begin, end);
    FlushStreams();
  });
}

}  // namespace normd::norm::cpu
