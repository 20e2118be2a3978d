// Moments of each channel of a block of positions x channels. Included once per target by
// foreach_target.h.
//
// Positions are taken in small blocks that stay in the cache, channels in tiles of vectors. Each
// tile keeps its sums in registers while it walks down the block's positions.

#if defined(NORMD_KERNELS_CPU_CHANNEL_MOMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_CHANNEL_MOMENTS_INL_H_
#undef NORMD_KERNELS_CPU_CHANNEL_MOMENTS_INL_H_
#else
#define NORMD_KERNELS_CPU_CHANNEL_MOMENTS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/moments-inl.h"
#include "kernels/cpu/moments.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Memory that is needed next: from an address on, eight vectors at a time, adjacent or `stride`
// bytes apart.
struct Ahead {
  HWY_INLINE void FetchEight(std::uintptr_t vector_bytes) {
    if (stride == 0) {
      Fetch(address, 8 * vector_bytes);
      address += 8 * vector_bytes;
      return;
    }
    for (int k = 0; k < 8; ++k, address += stride) {
      hwy::Prefetch(reinterpret_cast<const char*>(address));
    }
  }

  std::uintptr_t address = 0;
  std::uintptr_t stride = 0;
};

// A vector of channels of consecutive positions; only `left` channels if kPart.
template <class Format, bool kPart>
class ChannelTile {
 public:
  using D = AccTag<Format>;
  using V = hn::Vec<D>;

  HWY_INLINE ChannelTile(const typename Format::Lane* x, std::int64_t stride, std::size_t left)
      : x_(x), stride_(stride), left_(left) {}

  HWY_INLINE V Row(std::int64_t position) const {
    const typename Format::Lane* p = x_ + position * stride_;
    if constexpr (kPart) return LoadPart(Format(), D(), p, left_);
    return Load(Format(), D(), p);
  }

  HWY_INLINE V Pivot(std::int64_t positions) const {
    V sum = hn::Zero(D());
    for (std::int64_t i = 0; i < positions; ++i) sum = hn::Add(sum, Row(i));
    return hn::Mul(
        sum, hn::Set(D(), typename Format::Acc{1} / static_cast<typename Format::Acc>(positions)));
  }

  // Meanwhile it prefetches as much memory as it reads, as `ahead` says.
  HWY_INLINE void Accumulate(std::int64_t positions, V pivot, Ahead ahead,
                             DeviationSums<D>* sums) const {
    const std::uintptr_t bytes = hn::Lanes(D()) * sizeof(typename Format::Lane);
    std::int64_t first = 0;
    const auto deviation = [&](std::int64_t i) HWY_ATTR { return hn::Sub(Row(first + i), pivot); };
    for (; first + 8 <= positions; first += 8) {
      ahead.FetchEight(bytes);
      sums->AddEight(deviation);
    }
    sums->AddFew(positions - first, deviation);
  }

 private:
  const typename Format::Lane* x_;
  std::int64_t stride_;
  std::size_t left_;
};

// Lanes of double: a vector of Acc as one or two of them.
template <class D>
HWY_INLINE void StoreWide(D d, const WideSum<D>& sum, double* to) {
  const DoubleTag dd;
  hn::Store(sum.lower, dd, to);
  if (WideSum<D>::kTwo) hn::Store(sum.upper, dd, to + hn::Lanes(dd));
  (void)d;
}

// The channels of a tile.
template <class Format>
inline constexpr std::size_t kMaxChannels = hn::MaxLanes(AccTag<Format>());

// The moments of one tile's channels over one block.
template <class Format>
struct TileResult {
  static constexpr std::size_t kMaxLanes = kMaxChannels<Format>;

  double mean[kMaxLanes];
  double m2[kMaxLanes];
};

template <class Format, bool kPart>
HWY_INLINE void TileMoments(const ChannelTile<Format, kPart>& tile, std::int64_t positions,
                            bool centered, std::size_t channels, Ahead ahead,
                            TileResult<Format>* result) {
  // In double, the mean of several equal numbers may differ from them, and a constant row would
  // have a variance.
  constexpr bool kDouble = std::is_same_v<typename Format::Acc, double>;
  constexpr std::int64_t kPivotPositions = kDouble ? 1 : 16;
  using D = AccTag<Format>;
  constexpr std::size_t kMaxLanes = TileResult<Format>::kMaxLanes;
  const D d;
  HWY_ALIGN double first[kMaxLanes];
  HWY_ALIGN double second[kMaxLanes];
  HWY_ALIGN typename Format::Acc pivots[kMaxLanes];
  const double n = static_cast<double>(positions);
  hn::Store(centered ? tile.Pivot(std::min(positions, kPivotPositions)) : hn::Zero(d), d, pivots);
  for (int attempt = 0; attempt < 2; ++attempt) {
    DeviationSums<D> sums;
    tile.Accumulate(positions, hn::Load(d, pivots), ahead, &sums);
    StoreWide(d, sums.first, first);
    StoreWide(d, sums.second, second);
    bool poor = false;
    for (std::size_t c = 0; c < channels; ++c) {
      const double shift = centered ? first[c] / n : 0;
      const double correction = first[c] * shift;
      const double m2 = second[c] - correction;
      result->mean[c] = centered ? static_cast<double>(pivots[c]) + shift : 0;
      result->m2[c] = m2 < 0 ? 0 : m2;  // Keeps a NaN.
      poor = poor || correction > 4 * m2;
    }
    if (!poor) return;
    for (std::size_t c = 0; c < channels; ++c) {
      pivots[c] = static_cast<typename Format::Acc>(result->mean[c]);
    }
  }
}

// Merges a block into the channels' moments of all `before` positions.
template <class Format>
HWY_INLINE void MergeTile(const TileResult<Format>& tile, std::int64_t before,
                          std::int64_t positions, std::size_t channels, double* mean, double* m2) {
  const double count_before = static_cast<double>(before);
  const double count = static_cast<double>(positions);
  for (std::size_t c = 0; c < channels; ++c) {
    const Moments merged = Merge({count_before, mean[c], m2[c]}, {count, tile.mean[c], tile.m2[c]});
    mean[c] = merged.mean;
    m2[c] = merged.m2;
  }
}

// How a tile's moments are computed, and how many channels it has at most.
template <class Format>
struct ChannelTiles {
  // About half of a first-level cache: a line that one tile has read in part is still there for the
  // next.
  static constexpr std::int64_t kBlockElements = 4096;

  static HWY_INLINE std::int64_t Lanes() {
    return static_cast<std::int64_t>(hn::Lanes(AccTag<Format>()));
  }

  // Takes `channels` <= Lanes() channels from x on.
  static HWY_INLINE void Take(const typename Format::Lane* x, std::int64_t stride,
                              std::int64_t positions, bool centered, std::size_t channels,
                              Ahead ahead, TileResult<Format>* result) {
    if (static_cast<std::int64_t>(channels) == Lanes()) {
      const ChannelTile<Format, false> tile(x, stride, 0);
      TileMoments(tile, positions, centered, channels, ahead, result);
    } else {
      const ChannelTile<Format, true> tile(x, stride, channels);
      TileMoments(tile, positions, centered, channels, ahead, result);
    }
  }
};

template <class Format>
void ChannelMoments(const ChannelBlock& block, bool centered, double* mean, double* m2) {
  using Tiles = ChannelTiles<Format>;
  const std::int64_t lanes = Tiles::Lanes();
  const std::int64_t channels = block.channels;
  const std::int64_t stride = block.stride == 0 ? channels : block.stride;
  const auto* x = static_cast<const typename Format::Lane*>(block.x);
  const std::int64_t step = std::clamp<std::int64_t>(Tiles::kBlockElements / channels, 64, 512);
  for (std::int64_t from = 0; from < block.positions; from += step) {
    const std::int64_t positions = std::min(step, block.positions - from);
    const auto* rows = x + from * stride;
    for (std::int64_t c = 0; c < channels; c += lanes) {
      const std::size_t width = static_cast<std::size_t>(std::min(lanes, channels - c));
      TileResult<Format> result;
      // Tile by tile, prefetch the whole next block: a tile's own columns are too far apart for the
      // hardware prefetcher. Where positions lie together, so does the memory that the tiles fetch.
      Ahead ahead;
      ahead.address = reinterpret_cast<std::uintptr_t>(rows) +
                      static_cast<std::uintptr_t>(positions * stride) * sizeof(*x);
      if (stride == channels) {
        ahead.address += static_cast<std::uintptr_t>(positions * c) * sizeof(*x);
      } else {
        ahead.address += static_cast<std::uintptr_t>(c) * sizeof(*x);
        ahead.stride = static_cast<std::uintptr_t>(stride) * sizeof(*x);
      }
      Tiles::Take(rows + c, stride, positions, centered, width, ahead, &result);
      MergeTile<Format>(result, from, positions, width, mean + c, m2 + c);
    }
  }
  for (std::int64_t c = 0; c < channels; ++c) {
    if (std::isfinite(m2[c])) continue;
    const Moments moments = WideMoments<Format>(x + c, block.positions, stride, centered);
    mean[c] = moments.mean;
    m2[c] = moments.m2;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_CHANNEL_MOMENTS_INL_H_
