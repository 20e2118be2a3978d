// Rows that are one run of memory. Two strategies with the same bits, because a row's moments are
// always merged over the same parts in the same order: rows over cores, where each core brings a
// row into its own cache once; or, where rows are few or too long for that, each row's parts over
// cores.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/batch.h"

namespace norm::cpu {
namespace {

constexpr std::int64_t kPartElements = 4 * kChunkElements;
// A task is worth this many bytes at least.
constexpr std::int64_t kTaskBytes = 128 << 10;

class Rows {
 public:
  Rows(const Batch& batch, const Segment& segment)
      : batch_(batch),
        segment_(segment),
        given_(batch.spec.statistics == Statistics::kGiven),
        groups_(given_ ? batch.spec.channels : batch.spec.groups),
        row_channels_(batch.spec.channels / groups_),
        length_(row_channels_ * segment.spatial) {}

  std::int64_t count() const { return segment_.samples * groups_; }
  std::int64_t length() const { return length_; }
  std::int64_t parts() const { return (length_ + kPartElements - 1) / kPartElements; }
  bool given() const { return given_; }

  Moments PartMoments(std::int64_t row, std::int64_t part) const {
    const std::int64_t begin = part * kPartElements;
    const std::int64_t count = std::min(kPartElements, length_ - begin);
    return batch_.kernels->moments(MakeRun(batch_, segment_, row * length_ + begin, count).x, count,
                                   IsCentered(batch_.spec));
  }

  RowStatistics Finish(const Moments& moments) const {
    return cpu::Finish(moments, batch_.spec.eps);
  }

  void ApplyPart(std::int64_t row, const RowStatistics& statistics, std::int64_t part) const {
    const std::int64_t begin = part * kPartElements;
    Apply(row, statistics, begin, std::min(begin + kPartElements, length_));
  }

  void Normalize(std::int64_t row) const {
    RowStatistics statistics;
    if (!given_) {
      Moments moments;
      for (std::int64_t part = 0; part < parts(); ++part) {
        moments = Merge(moments, PartMoments(row, part));
      }
      statistics = Finish(moments);
    }
    Apply(row, statistics, 0, length_);
  }

 private:
  // Elements [begin, end) of the row.
  void Apply(std::int64_t row, const RowStatistics& statistics, std::int64_t begin,
             std::int64_t end) const {
    const std::int64_t first_channel = row % groups_ * row_channels_;
    if (segment_.spatial == 1 && !given_) {
      ApplyElements(row, statistics, first_channel, begin, end);
      return;
    }
    const std::int64_t spatial = segment_.spatial;
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t channel = first_channel + at / spatial;
      const std::int64_t stop = std::min(end, (at / spatial + 1) * spatial);
      const Affine affine =
          given_ ? GivenAffine(batch_, channel) : ChannelAffine(batch_, statistics, channel);
      batch_.kernels->apply(MakeRun(batch_, segment_, row * length_ + at, stop - at), affine);
      at = stop;
    }
  }

  void ApplyElements(std::int64_t row, const RowStatistics& statistics, std::int64_t first_channel,
                     std::int64_t begin, std::int64_t end) const {
    const std::int64_t acc_bytes = batch_.spec.dtype == DType::kFloat64 ? 8 : 4;
    const auto from = [&](const void* param) -> const void* {
      if (param == nullptr) return nullptr;
      return static_cast<const char*>(param) + (first_channel + begin) * acc_bytes;
    };
    ElementAffine affine;
    affine.center = statistics.mean;
    affine.scale = statistics.rstd;
    affine.gamma = from(batch_.element_gamma);
    affine.beta = from(batch_.element_beta);
    batch_.kernels->apply_elements(MakeRun(batch_, segment_, row * length_ + begin, end - begin),
                                   affine);
  }

  const Batch& batch_;
  const Segment& segment_;
  const bool given_;
  const std::int64_t groups_;
  const std::int64_t row_channels_;
  const std::int64_t length_;
};

// Rows over cores leave cores idle at the end of few rows, and need a place in the shared cache for
// as many rows as there are cores.
bool SplitsRows(const Batch& batch, const Rows& rows) {
  const std::int64_t threads = batch.parallel.threads();
  if (threads == 1 || rows.parts() == 1) return false;
  if (rows.count() < 4 * threads) return true;
  const std::int64_t row_bytes =
      rows.length() * static_cast<std::int64_t>(SizeOf(batch.spec.dtype));
  return row_bytes > batch.caches.per_core_bytes &&
         row_bytes > batch.caches.last_level_bytes / (2 * threads);
}

void NormalizeSplit(const Batch& batch, const Rows& rows) {
  std::vector<Moments> parts(rows.given() ? 0 : static_cast<std::size_t>(rows.parts()));
  for (std::int64_t row = 0; row < rows.count(); ++row) {
    RowStatistics statistics;
    if (!rows.given()) {
      batch.parallel.For(rows.parts(), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t part = begin; part < end; ++part) {
          parts[static_cast<std::size_t>(part)] = rows.PartMoments(row, part);
        }
      });
      Moments moments;
      for (const Moments& part : parts) moments = Merge(moments, part);
      statistics = rows.Finish(moments);
    }
    batch.parallel.For(rows.parts(), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t part = begin; part < end; ++part) rows.ApplyPart(row, statistics, part);
      FlushStreams();
    });
  }
}

}  // namespace

void NormalizeContiguous(const Batch& batch, const Segment& segment) {
  const Rows rows(batch, segment);
  if (SplitsRows(batch, rows)) {
    NormalizeSplit(batch, rows);
    return;
  }
  const std::int64_t row_bytes =
      rows.length() * static_cast<std::int64_t>(SizeOf(batch.spec.dtype));
  const std::int64_t grain = std::max<std::int64_t>(1, kTaskBytes / row_bytes);
  batch.parallel.For(rows.count(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) rows.Normalize(row);
    FlushStreams();
  });
}

}  // namespace norm::cpu
