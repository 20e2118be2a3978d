// Stage by stage, rows that lie together in memory. Values that memory does not hold as such are
// read into the buffer in chunks. A row that fits is read once. A longer one is read once for its
// statistics, once more if a scale needs its largest result, and once for its results.

#include <cstdint>
#include <vector>

#include "kernels/cpu/row_places.h"
#include "kernels/cpu/sample_affine.h"
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
        places_(stages.spec, stages.segment),
        length_(places_.length()) {}

  std::int64_t count() const { return places_.count(); }
  std::int64_t length() const { return length_; }
  std::int64_t parts() const { return places_.parts(); }
  std::int64_t buffer_elements() const { return std::min(length_, kChunkElements); }

  // Normalizes rows [begin, end), each with its parts over `inner`.
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
  Elements<Acc> Take(std::int64_t row, std::int64_t begin, std::int64_t count, bool first_pass,
                     Acc* buffer) const {
    const Place place = places_.At(row, begin);
    const void* const memory = stages_.InMemory(place, first_pass);
    if (memory == nullptr) stages_.Read(place, count, first_pass, buffer);
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

  // Applies the stages before the quantization.
  void Apply(std::int64_t row, const RowStatistics& statistics, std::int64_t begin,
             std::int64_t count, const Elements<Acc>& v) const {
    const std::int64_t sample = places_.SampleOf(row);
    places_.ForChannels(
        row, begin, begin + count,
        [&](std::int64_t at, std::int64_t elements, std::int64_t channel) {
          Elements<Acc> from = v;
          from.Skip(at - begin, (at - begin) * stages_.element_bytes);
          const Place place = places_.At(row, at);
          const Batch& batch = stages_.batch;
          if (places_.channel_elements() == 1) {
            stages_.Apply(from, place, elements,
                          ElementsFrom(batch, stages_.segment, statistics, sample, channel));
          } else {
            const RowStatistics own =
                stages_.given() ? GivenStatistics(batch, channel) : statistics;
            stages_.Apply(from, place, elements,
                          ChannelAffine(batch, stages_.segment, own, sample, channel));
          }
        });
  }

  void Quantize(std::int64_t row, std::int64_t begin, std::int64_t count, const Acc* v,
                const QuantizationFactors& factors) const {
    const Place place = places_.At(row, begin);
    if (!stages_.quantizes_blocks()) return stages_.Quantize(v, place, count, factors);
    const std::int64_t blocks = (length_ + kQuantizationBlock - 1) / kQuantizationBlock;
    float* const scales = stages_.segment.scale_out + places_.OutputRow(row) * blocks;
    stages_.loops.quantize_blocks(v, spec_.quantization, scales + begin / kQuantizationBlock,
                                  static_cast<char*>(stages_.segment.y) + place.y, count);
  }

  // The factors of a row whose largest result is known, if it has a scale of its own.
  QuantizationFactors FactorsOf(std::int64_t row, double largest) const {
    if (!stages_.quantizes_rows()) return stages_.StaticFactors();
    const float scale = ScaleOf(spec_.quantization, largest);
    stages_.segment.scale_out[places_.OutputRow(row)] = scale;
    return stages_.Factors(scale);
  }

  RowStatistics FinishRow(std::int64_t row, const RowSums& sums) const {
    const RowStatistics statistics = Finish(sums, spec_);
    WriteStatistics(spec_, stages_.segment, places_.OutputRow(row), statistics);
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
  const RowPlaces places_;
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
