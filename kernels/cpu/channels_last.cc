// Channels last: a row's elements are strided, so a sample's rows are computed together. The
// sample's positions are cut into slices, whose number depends on its size alone; each slice gives
// moments per group, which are merged in order.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/cpu/batch.h"
#include "kernels/cpu/sample_affine.h"
#include "kernels/cpu/source.h"

namespace normd::norm::cpu {
namespace {

// center, scale and shift of every channel, in CyclicAffine's form.
template <class Acc>
class CyclicTable {
 public:
  explicit CyclicTable(std::int64_t channels)
      : channels_(channels),
        period_(channels * ((kCyclicPadding + channels - 1) / channels)),
        values_(static_cast<std::size_t>(3 * (period_ + kCyclicPadding))) {}

  // Call before the channels of a sample.
  void Clear() { factors_.Clear(); }

  // Call for each channel in turn.
  void Set(std::int64_t channel, const Affine& affine) {
    Acc* center = values_.data() + channel;
    *center = static_cast<Acc>(affine.center);
    largest_center_ = std::max(largest_center_, std::fabs(affine.center));
    center[Stride()] = static_cast<Acc>(affine.scale);
    center[2 * Stride()] =
        static_cast<Acc>(affine.shift + LostShift<Acc>(affine.center, affine.scale));
  }

  // Call for a channel that is set, before the next one, if its factor is not 1.
  void SetInputFactor(std::int64_t channel, double factor) { factors_.Add(channel, factor); }

  // Call after every channel is set.
  void Repeat() {
    factors_.Finish(channels_);
    if (factor_ = CenterFactor<Acc>(largest_center_); factor_ != 1) {
      for (std::int64_t i = 0; i < channels_; ++i) {
        values_[i] *= static_cast<Acc>(factor_);
        values_[i + Stride()] /= static_cast<Acc>(factor_);
      }
    }
    largest_center_ = 0;
    for (std::int64_t array = 0; array < 3; ++array) {
      Acc* values = values_.data() + array * Stride();
      for (std::int64_t i = channels_; i < Stride(); ++i) values[i] = values[i - channels_];
    }
  }

  // Calls apply(at, count, affine) for those parts of elements [first, end) of a sample whose
  // channels have one factor.
  template <class Apply>
  void ForParts(std::int64_t first, std::int64_t end, const Apply& apply) const {
    const std::vector<FactorRuns::Run>& runs = factors_.runs();
    if (runs.size() == 1) return apply(first, end - first, From(first, runs.front().factor));
    for (std::int64_t at = first; at < end;) {
      const std::int64_t channel = at % channels_;
      const auto run = std::find_if(runs.begin(), runs.end(),
                                    [channel](const auto& its) { return channel < its.end; });
      const std::int64_t count = std::min(run->end - channel, end - at);
      apply(at, count, From(at, run->factor));
      at += count;
    }
  }

 private:
  std::int64_t Stride() const { return period_ + kCyclicPadding; }

  CyclicAffine From(std::int64_t first, double factor) const {
    CyclicAffine affine;
    affine.factor = factor_ * factor;
    affine.center = values_.data();
    affine.scale = values_.data() + Stride();
    affine.shift = values_.data() + 2 * Stride();
    affine.period = period_;
    affine.phase = first % period_;
    return affine;
  }

  std::int64_t channels_;
  std::int64_t period_;
  std::vector<Acc> values_;
  double largest_center_ = 0;
  double factor_ = 1;
  FactorRuns factors_;
};

class Samples {
 public:
  Samples(const Batch& batch, const Segment& segment)
      : batch_(batch),
        segment_(segment),
        channels_(batch.spec.channels),
        groups_(batch.spec.groups),
        fold_(channels_ < 256 ? 16 / std::gcd<std::int64_t>(channels_, 16) : 1) {
    // A slice has a few hundred positions at least; there are at most 64.
    const std::int64_t unit = fold_ * 64;
    const std::int64_t wanted =
        std::max({kTaskElements / channels_, segment.spatial / 64, std::int64_t{1}});
    slice_positions_ = (wanted + unit - 1) / unit * unit;
  }

  std::int64_t elements() const { return segment_.spatial * channels_; }
  std::int64_t groups() const { return groups_; }
  std::int64_t slices() const {
    return (segment_.spatial + slice_positions_ - 1) / slice_positions_;
  }

  // Writes the moments of each group over one slice to out[groups].
  void SliceMoments(std::int64_t sample, std::int64_t slice, Moments* out) const {
    const std::int64_t begin = slice * slice_positions_;
    const std::int64_t positions = std::min(slice_positions_, segment_.spatial - begin);
    const std::int64_t first = sample * elements() + begin * channels_;
    MakeSource(batch_, segment_, first, positions * channels_);
    if (groups_ == 1) {
      const std::int64_t count = positions * channels_;
      *out = batch_.kernels->moments(MakeRun(batch_, segment_, first, count).x, count,
                                     IsCentered(batch_.spec));
      return;
    }
    std::fill(out, out + groups_, Moments());
    // `fold_` adjacent positions count as one position with fold_ times the channels: a vector then
    // has no padding even if there are fewer channels than lanes.
    const std::int64_t folded = positions / fold_;
    if (folded > 0) AddBlock(first, folded, fold_, out);
    if (const std::int64_t rest = positions - folded * fold_; rest > 0) {
      AddBlock(first + folded * fold_ * channels_, rest, 1, out);
    }
  }

  template <class Acc>
  void FillTable(std::int64_t sample, const std::vector<Moments>& moments,
                 CyclicTable<Acc>* table) const {
    const std::int64_t group_channels = channels_ / groups_;
    table->Clear();
    for (std::int64_t group = 0; group < groups_; ++group) {
      RowStatistics row = Finish(moments[static_cast<std::size_t>(group)], batch_.spec);
      WriteStatistics(batch_.spec, segment_, sample * groups_ + group, row);
      const double factor = InputFactor(batch_.spec, row.rstd);
      if (factor != 1) row.rstd /= factor;
      for (std::int64_t i = 0; i < group_channels; ++i) {
        const std::int64_t channel = group * group_channels + i;
        const FactorAndOffset terms = FactorAndOffsetOf(batch_, segment_, sample, channel);
        table->Set(channel, {row.mean, row.rstd * terms.factor, terms.offset});
        if (factor != 1) table->SetInputFactor(channel, factor);
      }
    }
    table->Repeat();
  }

  template <class Acc>
  void ApplySlice(std::int64_t sample, std::int64_t slice, const CyclicTable<Acc>& table) const {
    const std::int64_t first = slice * slice_positions_ * channels_;
    const std::int64_t end = std::min(first + slice_positions_ * channels_, elements());
    table.ForParts(first, end, [&](std::int64_t at, std::int64_t count, const CyclicAffine& from) {
      batch_.kernels->apply_cyclic(MakeRun(batch_, segment_, sample * elements() + at, count),
                                   from);
    });
  }

 private:
  // Merges the moments of positions x (fold * channels) elements from `first` on into each group.
  void AddBlock(std::int64_t first, std::int64_t positions, std::int64_t fold, Moments* out) const {
    const std::int64_t width = fold * channels_;
    std::vector<double> scratch(static_cast<std::size_t>(2 * width));
    double* mean = scratch.data();
    double* m2 = mean + width;
    const ChannelBlock block{MakeRun(batch_, segment_, first, 0).x, positions, width};
    batch_.kernels->channel_moments(block, IsCentered(batch_.spec), mean, m2);
    const std::int64_t group_channels = channels_ / groups_;
    for (std::int64_t group = 0; group < groups_; ++group) {
      const double columns = static_cast<double>(fold * group_channels);
      // All columns have the same weight, so their mean is a plain one, and so is the spread of
      // their means. The mean is taken around the first column's, so that it is exact for equal
      // columns.
      const auto for_columns = [&](auto visit) {
        for (std::int64_t k = 0; k < fold; ++k) {
          const std::int64_t from = k * channels_ + group * group_channels;
          for (std::int64_t i = from; i < from + group_channels; ++i) visit(i);
        }
      };
      Moments moments{columns * static_cast<double>(positions), 0, 0};
      const double around = mean[group * group_channels];
      for_columns([&](std::int64_t i) { moments.mean += mean[i] - around; });
      moments.mean = around + moments.mean / columns;
      double spread = 0;
      for_columns([&](std::int64_t i) {
        spread += (mean[i] - moments.mean) * (mean[i] - moments.mean);
        moments.m2 += m2[i];
      });
      moments.m2 += spread * static_cast<double>(positions);
      out[group] = Merge(out[group], moments);
    }
  }

  const Batch& batch_;
  const Segment& segment_;
  const std::int64_t channels_;
  const std::int64_t groups_;
  const std::int64_t fold_;
  std::int64_t slice_positions_ = 0;
};

template <class Acc>
void NormalizeSamples(const Batch& batch, const Segment& segment) {
  const Samples samples(batch, segment);
  // Parallel over samples if there are many, else over the slices of each.
  const bool split = segment.samples < 4 * batch.parallel.threads();
  const Parallel inner = split ? batch.parallel : Parallel(1);
  const std::int64_t grain =
      split ? segment.samples : std::max<std::int64_t>(1, kTaskElements / samples.elements());
  const std::size_t groups = static_cast<std::size_t>(samples.groups());
  batch.parallel.For(segment.samples, grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Moments> moments(static_cast<std::size_t>(samples.slices()) * groups);
    CyclicTable<Acc> table(batch.spec.channels);
    for (std::int64_t sample = begin; sample < end; ++sample) {
      inner.For(samples.slices(), 1, [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t slice = from; slice < to; ++slice) {
          samples.SliceMoments(sample, slice,
                               moments.data() + static_cast<std::size_t>(slice) * groups);
        }
      });
      for (std::size_t i = groups; i < moments.size(); ++i) {
        moments[i % groups] = Merge(moments[i % groups], moments[i]);
      }
      samples.FillTable(sample, moments, &table);
      inner.For(samples.slices(), 1, [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t slice = from; slice < to; ++slice) {
          samples.ApplySlice(sample, slice, table);
        }
        FlushStreams();
      });
    }
  });
}

template <class Acc>
void NormalizeGiven(const Batch& batch, const Segment& segment) {
  const std::int64_t channels = batch.spec.channels;
  CyclicTable<Acc> table(channels);
  for (std::int64_t c = 0; c < channels; ++c) {
    table.Set(c, ChannelAffine(batch, segment, GivenStatistics(batch, c), 0, c));
  }
  table.Repeat();
  const std::int64_t elements = segment.samples * segment.spatial * channels;
  const std::int64_t tasks = (elements + kTaskElements - 1) / kTaskElements;
  batch.parallel.For(tasks, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * kTaskElements;
    const std::int64_t last = std::min(end * kTaskElements, elements);
    MakeSource(batch, segment, first, last - first);
    table.ForParts(first, last, [&](std::int64_t at, std::int64_t count, const CyclicAffine& from) {
      batch.kernels->apply_cyclic(MakeRun(batch, segment, at, count), from);
    });
    FlushStreams();
  });
}

}  // namespace

void NormalizeChannelsLast(const Batch& batch, const Segment& segment) {
  if (batch.spec.dtype == DType::kFloat64) {
    NormalizeSamples<double>(batch, segment);
  } else {
    NormalizeSamples<float>(batch, segment);
  }
}

void NormalizeGivenChannelsLast(const Batch& batch, const Segment& segment) {
  if (batch.spec.dtype == DType::kFloat64) {
    NormalizeGiven<double>(batch, segment);
  } else {
    NormalizeGiven<float>(batch, segment);
  }
}

}  // namespace normd::norm::cpu
