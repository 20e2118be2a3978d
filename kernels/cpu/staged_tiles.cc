// Stage by stage, rows that interleave in memory: a tile is some adjacent columns of a matrix whose
// columns share statistics, in blocks of lines. A tile that fits the buffer is read once; otherwise
// each block is read again for each pass, as in staged_rows.cc.
//
//   rows                       lines       columns     a row is
//   positions, channels first  channels    positions   a column
//   groups, channels last      positions   channels    the columns of a group
//   given statistics           positions   channels    (none: each column has its own statistics)

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cpu/sample_affine.h"
#include "kernels/cpu/staged.h"
#include "kernels/cpu/staged_columns.h"

namespace normd::norm::cpu {
namespace {

// The size of a buffer: with the memory read and written meanwhile, a small part of a second-level
// cache.
constexpr std::int64_t kBlockElements = 32 << 10;
// Lines shorter than this cost more to find than to read.
constexpr std::int64_t kMinColumns = 256;
constexpr std::int64_t kMaxColumns = 1024;
// Lines this far apart share the sets of a cache, which evicts them before they are read again:
// they go through a buffer.
constexpr std::int64_t kAliasBytes = 4096;

struct Tile {
  std::int64_t sample = 0;
  std::int64_t first_channel = 0;
  std::int64_t first_row = 0;  // As the contract counts rows.
  std::int64_t first = 0;      // Element of the segment.
  std::int64_t stride = 0;     // Elements from a line to the next.
  std::int64_t lines = 0;
  std::int64_t columns = 0;
};

template <class Acc>
class StagedTiles {
 public:
  explicit StagedTiles(const Stages<Acc>& stages)
      : stages_(stages),
        spec_(stages.spec),
        of_positions_(spec_.rows == Rows::kPosition),
        channels_(spec_.channels),
        groups_(stages.given() ? channels_ : spec_.groups),
        group_channels_(channels_ / groups_),
        spatial_(stages.segment.spatial) {
    if (of_positions_) {
      const std::int64_t fitting = kBlockElements / group_channels_ / kMinColumns * kMinColumns;
      step_ = std::clamp(fitting, kMinColumns, kMaxColumns);
      tiles_ = groups_ * ((spatial_ + step_ - 1) / step_);
    } else {
      step_ = std::clamp<std::int64_t>(kMaxColumns / group_channels_, 1, groups_);
      tiles_ = (groups_ + step_ - 1) / step_;
    }
  }

  std::int64_t count() const { return stages_.segment.samples * tiles_; }

  Tile TileAt(std::int64_t index) const {
    Tile tile;
    tile.sample = index / tiles_;
    const std::int64_t at = index % tiles_;
    if (of_positions_) {
      const std::int64_t per_group = tiles_ / groups_;
      const std::int64_t group = at / per_group;
      const std::int64_t position = at % per_group * step_;
      tile.first_channel = group * group_channels_;
      tile.first_row = (tile.sample * groups_ + group) * spatial_ + position;
      tile.first = (tile.sample * channels_ + tile.first_channel) * spatial_ + position;
      tile.stride = spatial_;
      tile.lines = group_channels_;
      tile.columns = std::min(step_, spatial_ - position);
    } else {
      const std::int64_t group = at * step_;
      tile.first_channel = group * group_channels_;
      tile.first_row = tile.sample * groups_ + group;
      tile.first = tile.sample * spatial_ * channels_ + tile.first_channel;
      tile.stride = channels_;
      tile.lines = spatial_;
      tile.columns = std::min(step_, groups_ - group) * group_channels_;
    }
    return tile;
  }

  void Normalize(const Tile& tile, const Parallel& inner) const {
    const std::int64_t blocks = Blocks(tile);
    ColumnArrays<Acc> columns(tile.columns);
    if (blocks == 1) return NormalizeBlock(tile, &columns);
    const bool again = !stages_.given();
    if (again) {
      BlockSums sums(blocks, tile.columns);
      ForBlocks(tile, inner,
                [&](std::int64_t block, std::int64_t begin, std::int64_t lines, Acc* v) {
                  Sum(tile, Take(tile, begin, lines, true, v), lines, sums.First(block),
                      sums.Second(block));
                });
      FinishRows(tile, sums, &columns);
    } else {
      FinishGiven(tile, &columns);
    }
    std::vector<Acc> largest;
    if (stages_.quantizes_rows()) largest = LargestOf(tile, columns, inner);
    const QuantizationFactors factors = FactorsOf(tile, &largest);
    ForBlocks(tile, inner, [&](std::int64_t, std::int64_t begin, std::int64_t lines, Acc* v) {
      Apply(tile, columns, begin, lines, Take(tile, begin, lines, !again, v));
      Quantize(tile, begin, lines, v, factors);
    });
  }

 private:
  // Normalizes a tile of one block.
  void NormalizeBlock(const Tile& tile, ColumnArrays<Acc>* columns) const {
    const auto buffer =
        std::make_unique_for_overwrite<Acc[]>(static_cast<std::size_t>(tile.lines * tile.columns));
    const Elements<Acc> v = Take(tile, 0, tile.lines, true, buffer.get());
    if (!stages_.given()) {
      BlockSums sums(1, tile.columns);
      Sum(tile, v, tile.lines, sums.First(0), sums.Second(0));
      FinishRows(tile, sums, columns);
    } else {
      FinishGiven(tile, columns);
    }
    Apply(tile, *columns, 0, tile.lines, v);
    std::vector<Acc> largest;
    if (stages_.quantizes_rows()) {
      largest.resize(static_cast<std::size_t>(tile.columns));
      RaiseLargest(tile, v.buffer, tile.lines, largest.data());
    }
    Quantize(tile, 0, tile.lines, v.buffer, FactorsOf(tile, &largest));
  }

  static std::int64_t BlockLines(const Tile& tile) {
    return std::max<std::int64_t>(1, kBlockElements / tile.columns);
  }
  static std::int64_t Blocks(const Tile& tile) {
    return (tile.lines + BlockLines(tile) - 1) / BlockLines(tile);
  }

  // Calls visit(block, first line, lines, buffer) for each block, over the cores.
  template <class Visit>
  void ForBlocks(const Tile& tile, const Parallel& inner, const Visit& visit) const {
    const std::int64_t step = BlockLines(tile);
    inner.For(Blocks(tile), 1, [&](std::int64_t from, std::int64_t to) {
      const auto buffer =
          std::make_unique_for_overwrite<Acc[]>(static_cast<std::size_t>(step * tile.columns));
      for (std::int64_t block = from; block < to; ++block) {
        visit(block, block * step, std::min(step, tile.lines - block * step), buffer.get());
      }
      FlushStreams();
    });
  }

  void Read(const Tile& tile, std::int64_t begin, std::int64_t lines, bool first_pass,
            Acc* v) const {
    for (std::int64_t i = 0; i < lines; ++i) {
      stages_.Read(tile.first + (begin + i) * tile.stride, tile.columns, first_pass,
                   v + i * tile.columns);
    }
  }

  Elements<Acc> Take(const Tile& tile, std::int64_t begin, std::int64_t lines, bool first_pass,
                     Acc* buffer) const {
    const bool aliases = tile.stride * stages_.element_bytes % kAliasBytes == 0;
    const void* const memory =
        aliases ? nullptr : stages_.InMemory(tile.first + begin * tile.stride, first_pass);
    if (memory == nullptr) Read(tile, begin, lines, first_pass, buffer);
    return {memory, buffer};
  }

  // Sums one block: mean and squared deviations of each column, or its sum of absolutes, or its
  // largest absolute.
  void Sum(const Tile& tile, const Elements<Acc>& elements, std::int64_t lines, double* first,
           double* second) const {
    const auto columns = static_cast<std::size_t>(tile.columns);
    const Acc* const v = elements.buffer;
    switch (spec_.statistics) {
      case Statistics::kSumOfAbsolutes:
        for (std::int64_t i = 0; i < lines; ++i) {
          for (std::size_t c = 0; c < columns; ++c) {
            first[c] += std::fabs(static_cast<double>(v[i * tile.columns + std::int64_t(c)]));
          }
        }
        return;
      case Statistics::kLargestAbsolute: {
        std::vector<Acc> largest(columns);
        RaiseLargest(tile, v, lines, largest.data());
        std::copy(largest.begin(), largest.end(), first);
        return;
      }
      default:
        if (elements.memory != nullptr) {
          stages_.batch.kernels->channel_moments(
              {elements.memory, lines, tile.columns, tile.stride}, IsCentered(spec_), first,
              second);
        } else {
          stages_.acc_kernels.channel_moments({v, lines, tile.columns}, IsCentered(spec_), first,
                                              second);
        }
    }
  }

  RowSums ColumnSums(const Tile& tile, BlockSums& sums, std::int64_t column) const {
    RowSums all;
    for (std::int64_t block = 0; block < Blocks(tile); ++block) {
      const std::int64_t lines = std::min(BlockLines(tile), tile.lines - block * BlockLines(tile));
      const double first = sums.First(block)[column];
      const double second = sums.Second(block)[column];
      RowSums own;
      switch (spec_.statistics) {
        case Statistics::kSumOfAbsolutes: own.absolutes = first; break;
        case Statistics::kLargestAbsolute: own.largest = first; break;
        default: own.moments = {static_cast<double>(lines), first, second};
      }
      all = Merge(all, own);
    }
    return all;
  }

  void FinishRows(const Tile& tile, BlockSums& sums, ColumnArrays<Acc>* columns) const {
    const std::int64_t width = of_positions_ ? 1 : group_channels_;
    for (std::int64_t from = 0; from < tile.columns; from += width) {
      RowSums row;
      for (std::int64_t c = from; c < from + width; ++c) {
        row = Merge(row, ColumnSums(tile, sums, c));
      }
      const RowStatistics statistics = norm::cpu::Finish(row, spec_);
      WriteStatistics(spec_, stages_.segment, tile.first_row + from / width, statistics);
      for (std::int64_t c = from; c < from + width; ++c) SetColumn(tile, c, statistics, columns);
    }
    columns->Finish();
  }

  void FinishGiven(const Tile& tile, ColumnArrays<Acc>* columns) const {
    for (std::int64_t c = 0; c < tile.columns; ++c) {
      SetColumn(tile, c, GivenStatistics(stages_.batch, tile.first_channel + c), columns);
    }
    columns->Finish();
  }

  void SetColumn(const Tile& tile, std::int64_t column, const RowStatistics& statistics,
                 ColumnArrays<Acc>* columns) const {
    const auto at = static_cast<std::size_t>(column);
    const FactorAndOffset terms =
        of_positions_ ? FactorAndOffset() : TermsOf(tile, tile.first_channel + column);
    columns->Set(at, statistics, terms);
    if (const double factor = InputFactor(spec_, statistics.rstd); factor != 1) {
      columns->SetInputFactor(at, factor, statistics.rstd / factor * terms.factor);
    }
  }

  FactorAndOffset TermsOf(const Tile& tile, std::int64_t channel) const {
    return FactorAndOffsetOf(stages_.batch, stages_.segment, tile.sample, channel);
  }

  // Applies the stages before the quantization.
  void Apply(const Tile& tile, const ColumnArrays<Acc>& columns, std::int64_t begin,
             std::int64_t lines, const Elements<Acc>& v) const {
    LineAffine affine;
    for (std::int64_t i = 0; i < lines; ++i) {
      if (of_positions_) {
        const FactorAndOffset terms = TermsOf(tile, tile.first_channel + begin + i);
        affine.line_scale = terms.factor;
        affine.line_shift = terms.offset;
      }
      std::int64_t at = 0;
      for (const FactorRuns::Run& run : columns.factors.runs()) {
        affine.factor = columns.factor * run.factor;
        affine.center = columns.center.data() + at;
        affine.scale = columns.scale.data() + at;
        affine.shift = columns.shift.data() + at;
        Elements<Acc> part = v;
        part.Skip(i * tile.columns + at, (i * tile.stride + at) * stages_.element_bytes);
        stages_.Apply(part, tile.first + (begin + i) * tile.stride + at, run.end - at, affine);
        at = run.end;
      }
    }
  }

  void RaiseLargest(const Tile& tile, const Acc* v, std::int64_t lines, Acc* largest) const {
    for (std::int64_t i = 0; i < lines; ++i) {
      stages_.loops.raise_to_absolutes(v + i * tile.columns, largest, tile.columns);
    }
  }

  std::vector<Acc> LargestOf(const Tile& tile, const ColumnArrays<Acc>& columns,
                             const Parallel& inner) const {
    const auto width = static_cast<std::size_t>(tile.columns);
    std::vector<Acc> blocks(static_cast<std::size_t>(Blocks(tile)) * width);
    ForBlocks(tile, inner, [&](std::int64_t block, std::int64_t begin, std::int64_t lines, Acc* v) {
      Apply(tile, columns, begin, lines, Take(tile, begin, lines, false, v));
      RaiseLargest(tile, v, lines, blocks.data() + static_cast<std::size_t>(block) * width);
    });
    std::vector<Acc> largest(width);
    for (std::int64_t block = 0; block < Blocks(tile); ++block) {
      stages_.loops.raise_to_absolutes(blocks.data() + static_cast<std::size_t>(block) * width,
                                       largest.data(), tile.columns);
    }
    return largest;
  }

  // Turns the largest results of the columns into their factors, which the result refers to.
  QuantizationFactors FactorsOf(const Tile& tile, std::vector<Acc>* largest) const {
    if (!stages_.quantizes()) return {};
    QuantizationFactors factors = stages_.StaticFactors();
    if (!stages_.quantizes_rows()) return factors;
    const std::int64_t width = of_positions_ ? 1 : group_channels_;
    for (std::int64_t from = 0; from < tile.columns; from += width) {
      Acc* const columns = largest->data() + from;
      const double most = stages_.loops.largest_absolute(columns, width);
      const float scale = ScaleOf(spec_.quantization, most);
      stages_.segment.scale_out[tile.first_row + from / width] = scale;
      std::fill(columns, columns + width, static_cast<Acc>(FactorOf(scale)));
    }
    factors.per_element = largest->data();
    return factors;
  }

  void Quantize(const Tile& tile, std::int64_t begin, std::int64_t lines, const Acc* v,
                const QuantizationFactors& factors) const {
    if (!stages_.quantizes()) return;
    for (std::int64_t i = 0; i < lines; ++i) {
      stages_.Quantize(v + i * tile.columns, tile.first + (begin + i) * tile.stride, tile.columns,
                       factors);
    }
  }

  const Stages<Acc>& stages_;
  const NormSpec& spec_;
  const bool of_positions_;
  const std::int64_t channels_;
  const std::int64_t groups_;
  const std::int64_t group_channels_;
  const std::int64_t spatial_;
  std::int64_t step_ = 0;   // Positions, or groups, of a tile.
  std::int64_t tiles_ = 0;  // Tiles of a sample.
};

}  // namespace

template <class Acc>
void NormalizeStagedTiles(const Stages<Acc>& stages) {
  const StagedTiles<Acc> tiles(stages);
  const Parallel& parallel = stages.batch.parallel;
  // Parallel over tiles if there are many, else over the blocks of each.
  const bool split = parallel.threads() > 1 && tiles.count() < 4 * parallel.threads();
  const Parallel inner = split ? parallel : Parallel(1);
  parallel.For(tiles.count(), split ? tiles.count() : 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) tiles.Normalize(tiles.TileAt(i), inner);
    FlushStreams();
  });
}

template void NormalizeStagedTiles(const Stages<float>& stages);
template void NormalizeStagedTiles(const Stages<double>& stages);

}  // namespace normd::norm::cpu
