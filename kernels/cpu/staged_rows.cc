// Stage by stage, rows that lie together in memory: what is not in memory as it is wanted is read
// into the buffer in chunks. A row that fits is read once; a longer one once for its statistics,
// once more if its largest result is wanted for a scale, and once for its results.

#include <cstdint>
#include <vector>

#include "kernels/cpu/staged.h"

namespace normd::norm::cpu {
namespace {

constexpr std::int64_t kStagedTaskElements = 32 << 10;

template <class Acc>
class StagedRows {
 public:
  explicit StagedRows(const Stages<Acc>& stages)
      : stages_(stages),
        spec_(stages.spec),
        groups_(stages.given() ? spec_.channels : spec_.groups),
        row_channels_(spec_.channels / groups_),
        channel_elements_(spec_.rows == Rows::kGroup ? stages.segment.spatial : 1),
        positions_(spec_.rows == Rows::kGroup ? 1 : stages.segment.spatial),
        length_(row_channels_ * channel_elements_) {}

  std::int64_t count() const { return stages_.segment.samples * positions_ * groups_; }
  std::int64_t length() const { return length_; }
  std::int64_t parts() const { return (length_ + kPartElements - 1) / kPartElements; }
  std::int64_t buffer_elements() const { return std::min(length_, kChunkElements); }

  // Rows [begin, end), each with its parts over `inner`.
  void Normalize(std::int64_t begin, std::int64_t end, const Parallel& inner) const {
    const auto buffer =
        std::make_unique_for_overwrite<Acc[]>(static_cast<std::size_t>(buffer_elements()));
    for (std::int64_t row = begin; row < end; ++row) {
      if (length_ <= kChunkElements) {
        NormalizeShort(row, buffer.get());
      } else {
        NormalizeLong(row, inner);
      }
    }
  }

 private:
  std::int64_t SampleOf(std::int64_t row) const { return row / (positions_ * groups_); }
  std::int64_t FirstChannel(std::int64_t row) const { return row % groups_ * row_channels_; }

  // Where the contract counts the row: after samples come groups, in memory positions.
  std::int64_t OutputRow(std::int64_t row) const {
    const std::int64_t position = row / groups_ % positions_;
    return (SampleOf(row) * groups_ + row % groups_) * positions_ + position;
  }

  // Calls visit(at, count, channel) for the parts of [begin, begin + count) of a row that share a
  // channel, or once where each element is a channel.
  template <class Visit>
  void ForChannels(std::int64_t row, std::int64_t begin, std::int64_t count,
                   const Visit& visit) const {
    if (channel_elements_ == 1) return visit(begin, count, FirstChannel(row) + begin);
    for (std::int64_t at = begin; at < begin + count;) {
      const std::int64_t index = at / channel_elements_;
      const std::int64_t stop = std::min(begin + count, (index + 1) * channel_elements_);
      visit(at, stop - at, FirstChannel(row) + index);
      at = stop;
    }
  }

  void Read(std::int64_t row, std::int64_t begin, std::int64_t count, bool first_pass,
            Acc* v) const {
    const auto read = [&](std::int64_t at, std::int64_t elements, std::int64_t channel) {
      InputRun run = stages_.Input(row * length_ + at, elements, first_pass);
      if (stages_.TakesChannelInputs(first_pass)) {
        run.bias = stages_.inputs.input_bias.Of(SampleOf(row), channel);
        run.gate = stages_.inputs.gate.Of(SampleOf(row), channel);
        run.per_element = channel_elements_ == 1;
      }
      stages_.loops.read(run, v + (at - begin));
    };
    if (stages_.TakesChannelInputs(first_pass)) {
      ForChannels(row, begin, count, read);
    } else {
      read(begin, count, 0);
    }
  }

  Elements<Acc> Take(std::int64_t row, std::int64_t begin, std::int64_t count, bool first_pass,
                     Acc* buffer) const {
    const void* const memory = stages_.InMemory(row * length_ + begin, first_pass);
    if (memory == nullptr) Read(row, begin, count, first_pass, buffer);
    return {memory, buffer};
  }

  RowSums Sums(const Elements<Acc>& v, std::int64_t count) const {
    RowSums sums;
    switch (spec_.statistics) {
      case Statistics::kSumOfAbsolutes:
        sums.absolutes = stages_.loops.sum_of_absolutes(v.buffer, count);
        break;
      case Statistics::kLargestAbsolute:
        sums.largest = stages_.loops.largest_absolute(v.buffer, count);
        break;
      default:
        sums.moments = v.memory != nullptr
                           ? stages_.batch.kernels->moments(v.memory, count, IsCentered(spec_))
                           : stages_.acc_kernels.moments(v.buffer, count, IsCentered(spec_));
    }
    return sums;
  }

  // Up to the quantization.
  void Apply(std::int64_t row, const RowStatistics& statistics, std::int64_t begin,
             std::int64_t count, const Elements<Acc>& v) const {
    const std::int64_t sample = SampleOf(row);
    const auto& inputs = stages_.inputs;
    ForChannels(
        row, begin, count, [&](std::int64_t at, std::int64_t elements, std::int64_t channel) {
          Elements<Acc> from = v;
          from.Skip(at - begin, (at - begin) * stages_.element_bytes);
          const std::int64_t first = row * length_ + at;
          if (channel_elements_ == 1 && !stages_.given()) {
            stages_.Apply(
                from, first, elements,
                ElementAffine{statistics.mean, statistics.rstd, inputs.factor.Of(sample, channel),
                              inputs.offset.Of(sample, channel)});
            return;
          }
          const RowStatistics own = stages_.given() ? stages_.Given(channel) : statistics;
          stages_.Apply(from, first, elements,
                        Affine{own.mean, own.rstd * inputs.factor.At(sample, channel, 1),
                               inputs.offset.At(sample, channel, 0)});
        });
  }

  void Quantize(std::int64_t row, std::int64_t begin, std::int64_t count, const Acc* v,
                const QuantizationFactors& factors) const {
    const std::int64_t first = row * length_ + begin;
    if (!stages_.quantizes_blocks()) return stages_.Quantize(v, first, count, factors);
    const std::int64_t blocks = (length_ + kQuantizationBlock - 1) / kQuantizationBlock;
    float* const scales = stages_.segment.scale_out + OutputRow(row) * blocks;
    for (std::int64_t at = 0; at < count; at += kQuantizationBlock) {
      const std::int64_t elements = std::min(kQuantizationBlock, count - at);
      const float scale = stages_.ScaleOf(stages_.loops.largest_absolute(v + at, elements));
      scales[(begin + at) / kQuantizationBlock] = scale;
      stages_.Quantize(v + at, first + at, elements, stages_.Factors(static_cast<double>(scale)));
    }
  }

  // The factors of a row whose largest result is known, if it has a scale of its own.
  QuantizationFactors FactorsOf(std::int64_t row, double largest) const {
    if (!stages_.quantizes_rows()) return stages_.StaticFactors();
    const float scale = stages_.ScaleOf(largest);
    stages_.segment.scale_out[OutputRow(row)] = scale;
    return stages_.Factors(static_cast<double>(scale));
  }

  RowStatistics FinishRow(std::int64_t row, const RowSums& sums) const {
    const RowStatistics statistics = Finish(sums, spec_);
    WriteStatistics(spec_, stages_.segment, OutputRow(row), statistics);
    return statistics;
  }

  void NormalizeShort(std::int64_t row, Acc* buffer) const {
    const Elements<Acc> v = Take(row, 0, length_, true, buffer);
    RowStatistics statistics;
    if (!stages_.given()) statistics = FinishRow(row, Sums(v, length_));
    Apply(row, statistics, 0, length_, v);
    if (!stages_.quantizes()) return;
    const double largest =
        stages_.quantizes_rows() ? stages_.loops.largest_absolute(buffer, length_) : 0;
    Quantize(row, 0, length_, buffer, FactorsOf(row, largest));
  }

  // Calls visit(part, begin, count, buffer) for each chunk, parts over the cores.
  template <class Visit>
  void ForChunks(const Parallel& inner, const Visit& visit) const {
    inner.For(parts(), 1, [&](std::int64_t from, std::int64_t to) {
      const auto buffer = std::make_unique_for_overwrite<Acc[]>(kChunkElements);
      for (std::int64_t part = from; part < to; ++part) {
        const std::int64_t end = std::min((part + 1) * kPartElements, length_);
        for (std::int64_t begin = part * kPartElements; begin < end; begin += kChunkElements) {
          visit(part, begin, std::min(kChunkElements, end - begin), buffer.get());
        }
      }
      FlushStreams();
    });
  }

  void NormalizeLong(std::int64_t row, const Parallel& inner) const {
    std::vector<RowSums> sums(static_cast<std::size_t>(parts()));
    const auto merged = [&] {
      RowSums all;
      for (const RowSums& part : sums) all = Merge(all, part);
      return all;
    };
    RowStatistics statistics;
    if (!stages_.given()) {
      ForChunks(inner, [&](std::int64_t part, std::int64_t begin, std::int64_t count, Acc* buffer) {
        const Elements<Acc> v = Take(row, begin, count, true, buffer);
        RowSums& sum = sums[static_cast<std::size_t>(part)];
        sum = Merge(sum, Sums(v, count));
      });
      statistics = FinishRow(row, merged());
    }
    const bool again = !stages_.given();
    double largest = 0;
    if (stages_.quantizes_rows()) {
      std::fill(sums.begin(), sums.end(), RowSums());
      ForChunks(inner, [&](std::int64_t part, std::int64_t begin, std::int64_t count, Acc* v) {
        Apply(row, statistics, begin, count, Take(row, begin, count, !again, v));
        RowSums& sum = sums[static_cast<std::size_t>(part)];
        sum = Merge(sum, {{}, 0, stages_.loops.largest_absolute(v, count)});
      });
      largest = merged().largest;
    }
    const QuantizationFactors factors =
        stages_.quantizes() ? FactorsOf(row, largest) : QuantizationFactors();
    ForChunks(inner, [&](std::int64_t, std::int64_t begin, std::int64_t count, Acc* v) {
      Apply(row, statistics, begin, count, Take(row, begin, count, !again, v));
      if (stages_.quantizes()) Quantize(row, begin, count, v, factors);
    });
  }

  const Stages<Acc>& stages_;
  const NormSpec& spec_;
  const std::int64_t groups_;
  const std::int64_t row_channels_;
  const std::int64_t channel_elements_;  // Adjacent ones of a row that share a channel.
  const std::int64_t positions_;         // Of a sample that have rows of their own.
  const std::int64_t length_;
};

}  // namespace

template <class Acc>
void NormalizeStagedRows(const Stages<Acc>& stages) {
  const StagedRows<Acc> rows(stages);
  const Parallel& parallel = stages.batch.parallel;
  const bool split =
      parallel.threads() > 1 && rows.parts() > 1 && rows.count() < 4 * parallel.threads();
  if (split) return rows.Normalize(0, rows.count(), parallel);
  const std::int64_t grain = std::max<std::int64_t>(1, kStagedTaskElements / rows.length());
  parallel.For(rows.count(), grain, [&](std::int64_t begin, std::int64_t end) {
    rows.Normalize(begin, end, Parallel(1));
    FlushStreams();
  });
}

template void NormalizeStagedRows(const Stages<float>& stages);
template void NormalizeStagedRows(const Stages<double>& stages);

}  // namespace normd::norm::cpu
