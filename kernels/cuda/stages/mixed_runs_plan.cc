#include "kernels/cuda/stages/mixed_runs_plan.h"

#include <algorithm>
#include <array>
#include <limits>

namespace normd::norm::cuda {
namespace {

constexpr std::int64_t kVectorBytes = 16;
constexpr int kLanes = 32;

// Tiles of short rows have about kShortTileBytes, and no tile has more than kMostTileBytes, so that
// a multiprocessor holds two. Rows that do not fit come in chunks of kMostChunkBytes.
constexpr std::int64_t kShortTileBytes = 8 << 10;
constexpr std::int64_t kMostTileBytes = 100 << 10;
constexpr std::int64_t kMostChunkBytes = 64 << 10;

constexpr std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t RoundUp(std::int64_t value, std::int64_t unit) {
  return CeilDiv(value, unit) * unit;
}

// The largest power of two up to a value, which is at least 1.
constexpr int PowerUpTo(std::int64_t value) {
  int power = 1;
  while (2 * power <= value) power *= 2;
  return power;
}

class TilePlanner {
 public:
  TilePlanner(const NormSpec& spec, const RunSizes& spatial_runs, const DeviceLimits& limits)
      : element_(static_cast<std::int64_t>(SizeOf(spec.dtype))),
        count_(kVectorBytes / element_),
        room_(RoomOf(limits)) {
    constexpr std::size_t kLast = kMostRuns - 1;
    const bool positions_inside = spatial_runs[kLast] > 1;
    run_ = positions_inside ? 1 : spec.channel_runs[kLast];
    run_positions_ = positions_inside ? spatial_runs[kLast] : spatial_runs[kLast - 1];
    lines_ = spec.channels / run_;
  }

  MixedRunsPlan Plan() {
    ChooseRows();
    ChooseChunks();
    MixedRunsPlan plan;
    plan.run = static_cast<int>(run_);
    plan.run_positions = static_cast<int>(run_positions_);
    plan.positions = static_cast<int>(positions_);
    plan.runs = static_cast<int>(runs_);
    plan.lines = static_cast<int>(chunk_lines_);
    plan.elements = static_cast<int>(elements_);
    plan.chunks = static_cast<int>(chunks_);
    plan.row_stride = static_cast<int>(RowStride(chunk_lines_ * elements_));
    plan.shared_bytes = static_cast<std::size_t>(TileBytes(chunk_lines_, elements_));
    ChooseThreads(&plan);
    return plan;
  }

 private:
  // Excludes the static arrays of a block and the system's share. Devices before 8.0 use only what
  // they give without opting in.
  static std::int64_t RoomOf(const DeviceLimits& limits) {
    const std::int64_t device = limits.compute_capability < 80
                                    ? 48 << 10
                                    : static_cast<std::int64_t>(limits.shared_bytes_per_block);
    return std::min(kMostTileBytes, device - static_cast<std::int64_t>(kReservedSharedBytes));
  }

  std::int64_t rows() const { return positions_ * runs_; }
  std::int64_t RowBytes() const { return RoundUp(lines_ * run_ * element_, kVectorBytes); }

  // Makes rows begin in different banks.
  std::int64_t RowStride(std::int64_t elements) const {
    const std::int64_t bytes = RoundUp(elements * element_, kVectorBytes);
    return rows() > 1 && bytes / kVectorBytes % 2 == 0 ? bytes + kVectorBytes : bytes;
  }
  // With an extra vector after as many rows as a vector has elements, and an offset for each line.
  std::int64_t TileBytes(std::int64_t lines, std::int64_t elements) const {
    return rows() * RowStride(lines * elements) + CeilDiv(rows(), count_) * kVectorBytes +
           RoundUp(lines * 4, kVectorBytes);
  }

  // Enough rows to keep a block busy, and enough neighbours for lines of whole cache lines, of half
  // ones, or of sectors, unless the tile is then too large.
  std::int64_t WantedRows() const {
    const auto neighbours = [&](std::int64_t bytes) {
      return std::min(
          {CeilDiv(bytes, run_ * element_), run_positions_, std::int64_t{kMostTileRows}});
    };
    struct Lines {
      std::int64_t bytes;
      std::int64_t most;
    };
    constexpr std::array<Lines, 3> kLines = {
        {{128, 16 << 10}, {64, 32 << 10}, {32, kMostTileBytes}}};
    const std::int64_t few =
        std::clamp(kShortTileBytes / RowBytes(), std::int64_t{1}, std::int64_t{kMostTileRows});
    for (const Lines& lines : kLines) {
      const std::int64_t wanted = neighbours(lines.bytes);
      if (wanted * RowBytes() <= lines.most) return std::max(few, wanted);
    }
    return neighbours(64);
  }

  void ChooseRows() {
    const std::int64_t wanted = WantedRows();
    if (wanted >= run_positions_) {
      positions_ = run_positions_;
      runs_ = wanted / run_positions_;
      return;
    }
    // Tiles of a run have about as many rows each; lines are whole vectors if neighbours are
    // adjacent.
    positions_ = CeilDiv(run_positions_, CeilDiv(run_positions_, wanted));
    const std::int64_t rounded = RoundUp(positions_, count_);
    if (run_ % count_ != 0 && rounded <= std::min<std::int64_t>(kMostTileRows, run_positions_) &&
        (rounded <= wanted || rounded * RowBytes() <= kMostChunkBytes / 2)) {
      positions_ = rounded;
    }
  }

  void ChooseChunks() {
    elements_ = run_;
    chunk_lines_ = lines_;
    chunks_ = 1;
    if (TileBytes(lines_, run_) <= room_) return;
    const std::int64_t most = std::min(kMostChunkBytes, room_);
    // Chunks begin at whole vectors of parameters.
    const std::int64_t unit = run_ % count_ == 0 ? 1 : count_;
    for (chunks_ = CeilDiv(TileBytes(lines_, run_), most);; ++chunks_) {
      chunk_lines_ = RoundUp(CeilDiv(lines_, chunks_), unit);
      if (TileBytes(chunk_lines_, run_) <= most || chunk_lines_ <= unit) break;
    }
    if (TileBytes(chunk_lines_, run_) <= most) {
      chunks_ = CeilDiv(lines_, chunk_lines_);
      return;
    }
    chunk_lines_ = 1;
    const std::int64_t pieces = CeilDiv(run_ * element_, most - 4 * kVectorBytes);
    elements_ = RoundUp(CeilDiv(run_, pieces), count_);
    chunks_ = lines_ * CeilDiv(run_, elements_);
  }

  void ChooseThreads(MixedRunsPlan* plan) const {
    const std::int64_t vectors = CeilDiv(chunk_lines_ * elements_, count_);
    const std::int64_t bytes = rows() * vectors * kVectorBytes;
    plan->threads = bytes <= 4 << 10    ? 64
                    : bytes <= 8 << 10  ? 128
                    : bytes <= 16 << 10 ? 256
                                        : kMostTileThreads;
    int of_row = PowerUpTo(plan->threads / rows());
    while (of_row >= 2 * vectors) of_row /= 2;
    plan->lanes = std::min(of_row, kLanes);
    plan->parts = of_row / plan->lanes;
  }

  const std::int64_t element_;
  const std::int64_t count_;  // Elements per vector.
  const std::int64_t room_;
  std::int64_t run_ = 1;
  std::int64_t run_positions_ = 1;
  std::int64_t lines_ = 1;  // In a tile of whole rows.
  std::int64_t positions_ = 1;
  std::int64_t runs_ = 1;
  std::int64_t elements_ = 1;
  std::int64_t chunk_lines_ = 1;
  std::int64_t chunks_ = 1;
};

}  // namespace

bool TilesMixedRuns(const NormSpec& spec, std::int64_t spatial) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  return spec.dtype != DType::kFloat64 && spec.statistics != Statistics::kSumOfAbsolutes &&
         spec.statistics != Statistics::kLargestAbsolute && spec.style == Style::kNone &&
         !spec.gate && !spec.takes_other() && spec.quantization == Quantization::kNone &&
         spec.channels <= kMost / spatial;
}

MixedRunsPlan PlanMixedRuns(const NormSpec& spec, const RunSizes& spatial_runs,
                            const DeviceLimits& limits) {
  return TilePlanner(spec, spatial_runs, limits).Plan();
}

}  // namespace normd::norm::cuda
