// Rows whose channels and positions take turns in memory (Layout::kMixedRuns).
//
// A tile of positions is copied out of the tensors into a buffer of the thread. There its rows lie
// channels first or last, are computed in place as such a segment, and are copied back. The tensors
// are read and written once, and the buffer stays in the core's second-level cache if a row fits
// it. The innermost run decides the buffer's layout, so that copies move runs. Tiles depend on the
// spec and the runs alone, so bits do not depend on threads or samples.

#include "kernels/mixed_runs.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cpu/batch.h"
#include "kernels/sample_range.h"

namespace normd::norm::cpu {
namespace {

// The size of a tile's tensors together, unless their rows are longer.
constexpr std::int64_t kTileBytes = 256 << 10;
// If positions are innermost, at least a cache line of them: no part of a line is read in vain.
constexpr std::int64_t kLineBytes = 64;

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// `count` adjacent elements, `place` elements from the beginning of a tile or sample.
struct TogetherRun {
  std::int64_t place;
  std::int64_t count;
};

template <std::size_t kBytes>
void CopyWord(const char* from, char* to) {
  std::memcpy(to, from, kBytes);
}

// Copies in words, the last of which may overlap the one before it: most runs are too short for a
// call of memcpy.
template <std::size_t kBytes>
void CopyWords(const char* from, char* to, std::size_t bytes) {
  std::size_t at = 0;
  for (; at + kBytes <= bytes; at += kBytes) CopyWord<kBytes>(from + at, to + at);
  if (at < bytes) CopyWord<kBytes>(from + bytes - kBytes, to + bytes - kBytes);
}

void CopyRun(const char* from, char* to, std::size_t bytes) {
  if (bytes > 1024) {
    std::memcpy(to, from, bytes);
  } else if (bytes >= 16) {
    CopyWords<16>(from, to, bytes);
  } else if (bytes >= 8) {
    CopyWords<8>(from, to, bytes);
  } else if (bytes >= 4) {
    CopyWords<4>(from, to, bytes);
  } else if (bytes >= 2) {
    CopyWords<2>(from, to, bytes);
  } else {
    *to = *from;
  }
}

// A spec and a segment with their shortest runs, and their division into tiles.
class Tiling {
 public:
  Tiling(const NormSpec& spec, const Segment& segment)
      : places_{spec.channel_runs, segment.spatial_runs},
        channels_(spec.channels),
        spatial_(segment.spatial),
        positions_innermost_(places_.spatial_runs.back() > 1) {
    const std::int64_t inner = positions_innermost_ ? 1 : places_.channel_runs.back();
    for (std::int64_t c = 0; c < channels_; c += inner) {
      channel_runs_.push_back({places_.OfChannel(c), inner});
    }
    const auto element = static_cast<std::int64_t>(SizeOf(spec.dtype));
    const int tensors = 1 + (spec.residual ? 1 : 0) + (spec.takes_other() ? 1 : 0);
    positions_ = std::max<std::int64_t>(1, kTileBytes / (channels_ * element * tensors));
    if (positions_innermost_) {
      // Whole lines; if innermost runs are short, whole runs.
      const std::int64_t run = places_.spatial_runs.back();
      const std::int64_t line = std::min(run, kLineBytes / element);
      positions_ = CeilDiv(positions_, line) * line;
      if (positions_ > run) positions_ = positions_ / run * run;
    }
    positions_ = std::min(positions_, spatial_);
  }

  bool positions_innermost() const { return positions_innermost_; }
  std::int64_t positions() const { return positions_; }
  std::int64_t tiles() const { return CeilDiv(spatial_, positions_); }
  std::int64_t elements() const { return positions_ * channels_; }

  // Finds the runs of the tile's positions; its channels share them.
  void FindPositions(std::int64_t first, std::int64_t count, std::vector<TogetherRun>* runs) const {
    runs->clear();
    const std::int64_t run = positions_innermost_ ? places_.spatial_runs.back() : 1;
    for (std::int64_t at = first; at < first + count;) {
      const std::int64_t together = std::min(run - at % run, first + count - at);
      runs->push_back({places_.OfPosition(at), together});
      at += together;
    }
  }

  // Copies a tile between a sample's tensor and a buffer: move(place in the tensor, place in the
  // buffer, elements).
  template <typename Move>
  void ForTile(const std::vector<TogetherRun>& positions, const Move& move) const {
    std::int64_t at = 0;
    const std::vector<TogetherRun>& outer = positions_innermost_ ? channel_runs_ : positions;
    const std::vector<TogetherRun>& inner = positions_innermost_ ? positions : channel_runs_;
    for (const TogetherRun& line : outer) {
      for (const TogetherRun& run : inner) {
        move(line.place + run.place, at, run.count);
        at += run.count;
      }
    }
  }

 private:
  const MixedRuns places_;
  const std::int64_t channels_;
  const std::int64_t spatial_;
  const bool positions_innermost_;
  std::int64_t positions_;  // The positions of a tile.
  std::vector<TogetherRun> channel_runs_;
};

// A thread's buffers, and the tile in them.
class TileCopy {
 public:
  TileCopy(const Batch& batch, const Tiling& tiling)
      : batch_(batch),
        tiling_(tiling),
        element_(static_cast<std::int64_t>(SizeOf(batch.spec.dtype))),
        y_element_(batch.spec.quantization == Quantization::kNone ? element_ : 1),
        own_sum_(batch.spec.residual_out && !batch.spec.residual),
        own_y_(y_element_ != element_),
        spec_(batch.spec) {
    // The loops are faster on aligned lines.
    tensor_bytes_ = CeilDiv(tiling.elements() * element_, kLineBytes) * kLineBytes;
    const int tensors = 1 + (spec_.residual ? 1 : 0) + (spec_.takes_other() ? 1 : 0) +
                        (own_sum_ ? 1 : 0) + (own_y_ ? 1 : 0);
    memory_ = std::make_unique_for_overwrite<char[]>(
        static_cast<std::size_t>(tensors * tensor_bytes_ + kLineBytes));
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
    next_ = memory_.get() + (kLineBytes - address % kLineBytes) % kLineBytes;
    spec_.layout = tiling.positions_innermost() ? Layout::kChannelsFirst : Layout::kChannelsLast;
    spec_.channel_runs = {};
    x_ = Take();
    residual_ = spec_.residual ? Take() : nullptr;
    other_ = spec_.takes_other() ? Take() : nullptr;
    sum_ = own_sum_ ? Take() : spec_.residual_out ? residual_ : nullptr;
    y_ = own_y_ ? Take() : x_;
  }

  // Normalizes positions [first, first + count) of a segment of one sample.
  void Normalize(const Segment& sample, std::int64_t first, std::int64_t count) {
    tiling_.FindPositions(first, count, &positions_);
    Gather(sample.x, x_);
    Gather(sample.residual, residual_);
    Gather(sample.other, other_);
    Segment tile = sample;
    tile.spatial = count;
    tile.spatial_runs = {};
    tile.x = x_;
    tile.y = y_;
    tile.residual = residual_;
    tile.residual_out = sum_;
    tile.other = other_;
    tile.mean_out = Skip(sample.mean_out, first);
    tile.rstd_out = Skip(sample.rstd_out, first);
    if (sample.scale_out != nullptr) tile.scale_out = sample.scale_out + first;
    NormalizeFirstOrLast({spec_, batch_.params, batch_.kernels, Parallel(1), batch_.caches, false},
                         tile);
    Scatter(y_, y_element_, sample.y);
    if (sum_ != nullptr) Scatter(sum_, element_, sample.residual_out);
  }

 private:
  char* Take() {
    char* const taken = next_;
    next_ += tensor_bytes_;
    return taken;
  }

  void* Skip(void* out, std::int64_t rows) const {
    const std::int64_t acc = spec_.dtype == DType::kFloat64 ? 8 : 4;
    return out == nullptr ? nullptr : static_cast<char*>(out) + rows * acc;
  }

  void Gather(const void* tensor, char* buffer) const {
    if (buffer == nullptr) return;
    const auto* const from = static_cast<const char*>(tensor);
    tiling_.ForTile(positions_, [&](std::int64_t place, std::int64_t at, std::int64_t count) {
      CopyRun(from + place * element_, buffer + at * element_,
              static_cast<std::size_t>(count * element_));
    });
  }

  void Scatter(const char* buffer, std::int64_t element, void* tensor) const {
    auto* const to = static_cast<char*>(tensor);
    tiling_.ForTile(positions_, [&](std::int64_t place, std::int64_t at, std::int64_t count) {
      CopyRun(buffer + at * element, to + place * element,
              static_cast<std::size_t>(count * element));
    });
  }

  const Batch& batch_;
  const Tiling& tiling_;
  const std::int64_t element_;
  const std::int64_t y_element_;
  const bool own_sum_;
  const bool own_y_;
  NormSpec spec_;  // The tile's spec.
  std::int64_t tensor_bytes_;
  std::unique_ptr<char[]> memory_;
  char* next_;
  char* x_;
  char* residual_;
  char* other_;
  char* sum_;  // Copied to residual_out.
  char* y_;
  std::vector<TogetherRun> positions_;
};

}  // namespace

void NormalizeMixedRuns(const Batch& batch, const Segment& segment) {
  NormSpec spec = batch.spec;
  Segment shorter = segment;
  ShortenRuns(&spec, &shorter);
  const Batch own = batch.With(spec, batch.params);
  if (spec.layout != Layout::kMixedRuns) return NormalizeFirstOrLast(own, shorter);
  const Tiling tiling(spec, shorter);
  const std::int64_t tile_bytes = tiling.elements() * static_cast<std::int64_t>(SizeOf(spec.dtype));
  const std::int64_t grain = std::max<std::int64_t>(1, kTaskBytes / tile_bytes);
  batch.parallel.For(shorter.samples * tiling.tiles(), grain,
                     [&](std::int64_t begin, std::int64_t end) {
                       TileCopy tile(own, tiling);
                       for (std::int64_t i = begin; i < end; ++i) {
                         const std::int64_t first = i % tiling.tiles() * tiling.positions();
                         tile.Normalize(SamplesOf(spec, shorter, i / tiling.tiles(), 1), first,
                                        std::min(tiling.positions(), shorter.spatial - first));
                       }
                     });
}

}  // namespace normd::norm::cpu
