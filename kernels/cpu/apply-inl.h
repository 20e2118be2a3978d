// The elementwise pass: affine, activation, rounding, stores. Included once per target by
// foreach_target.h.

#if defined(NORMD_KERNELS_CPU_APPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_APPLY_INL_H_
#undef NORMD_KERNELS_CPU_APPLY_INL_H_
#else
#define NORMD_KERNELS_CPU_APPLY_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/activation-inl.h"
#include "kernels/cpu/affine_maps-inl.h"
#include "kernels/cpu/combine-inl.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/formats-inl.h"
#include "kernels/cpu/loop_arguments.h"
#include "kernels/cpu/moments-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// An After takes a Map's results for elements [i, i + Lanes) of a run; Part does so where only n
// lanes exist.

template <class Format>
struct NothingAfter {
  using V = hn::Vec<AccTag<Format>>;

  HWY_INLINE explicit NothingAfter(const Run&) {}
  HWY_INLINE void Four(V&, V&, V&, V&, std::int64_t) const {}
  HWY_INLINE V Full(V v, std::int64_t) const { return v; }
  HWY_INLINE V Part(V v, std::int64_t, std::size_t) const { return v; }
};

template <class Format>
class ActivationAfter {
 public:
  using V = hn::Vec<AccTag<Format>>;

  HWY_INLINE explicit ActivationAfter(const Run& run) : epilogue_(run.epilogue) {}
  HWY_INLINE void Four(V& v0, V& v1, V& v2, V& v3, std::int64_t) const {
    Activate<PrecisionFor<Format>>(AccTag<Format>(), v0, v1, v2, v3, epilogue_);
  }
  HWY_INLINE V Full(V v, std::int64_t) const {
    return Activate<PrecisionFor<Format>>(AccTag<Format>(), v, epilogue_);
  }
  HWY_INLINE V Part(V v, std::int64_t i, std::size_t) const { return Full(v, i); }

 private:
  const Epilogue epilogue_;
};

// The activation and the second tensor, which has the type Format whatever x and y have.
template <class Format>
class JoinAfter {
 public:
  using D = AccTag<Format>;
  using V = hn::Vec<D>;

  HWY_INLINE explicit JoinAfter(const Run& run)
      : epilogue_(run.epilogue),
        combine_(run.combine),
        other_(static_cast<const typename Format::Lane*>(run.other)) {}
  HWY_INLINE void Four(V& v0, V& v1, V& v2, V& v3, std::int64_t i) const {
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
    Activate(D(), v0, v1, v2, v3, epilogue_);
    v0 = Joined(v0, i);
    v1 = Joined(v1, i + lanes);
    v2 = Joined(v2, i + 2 * lanes);
    v3 = Joined(v3, i + 3 * lanes);
  }
  HWY_INLINE V Full(V v, std::int64_t i) const { return Joined(Activate(D(), v, epilogue_), i); }
  HWY_INLINE V Part(V v, std::int64_t i, std::size_t n) const {
    const V other = LoadPart(Format(), D(), other_ + i, n);
    return CombineWith(D(), combine_, Activate(D(), v, epilogue_), other);
  }

 private:
  HWY_INLINE V Joined(V v, std::int64_t i) const {
    return CombineWith(D(), combine_, v, Load(Format(), D(), other_ + i));
  }

  const Epilogue epilogue_;
  const Combine combine_;
  const typename Format::Lane* const other_;
};

// Moves the elements of a run from x, of type Source, to y through a map and an After.
template <class Source, class Format, class Map, class After>
class Transform {
 public:
  using D = AccTag<Format>;
  using V = hn::Vec<D>;
  using Lane = typename Format::Lane;

  HWY_INLINE Transform(const Run& run, const Map& map)
      : map_(map),
        after_(run),
        stream_(run.stream),
        x_(static_cast<const typename Source::Lane*>(run.x)),
        y_(static_cast<Lane*>(run.y)),
        count_(run.count) {}

  HWY_INLINE bool CanTakeEights(int n) const { return at_ + n * 8 * Lanes() <= count_; }

  HWY_INLINE void TakeEight() {
    TakeFour();
    TakeFour();
  }

  // Takes the elements before the first where y is aligned for streaming.
  HWY_INLINE void TakeHead() {
    const std::int64_t end = HeadEnd();
    if (end < count_) TakeSome(end);
  }

  HWY_INLINE void TakeRest() {
    while (at_ + 4 * Lanes() <= count_) TakeFour();
    TakeSome(count_);
  }

  // Head and rest are two turns of one loop, so that its long body is compiled once.
  HWY_INLINE void TakeAll() {
    for (std::int64_t end = HeadEnd();; end = count_) {
      while (at_ + 4 * Lanes() <= end) TakeFour();
      TakeSome(end);
      if (end == count_) return;
    }
  }

 private:
  static HWY_INLINE std::int64_t Lanes() { return static_cast<std::int64_t>(hn::Lanes(D())); }

  // The first element to be streamed; fewer than TakeFour takes precede it. count_ if there are
  // none before it.
  HWY_INLINE std::int64_t HeadEnd() const {
    if (!stream_) return count_;
    const std::size_t beyond = reinterpret_cast<std::uintptr_t>(y_) % StreamAlignment(D());
    if (beyond == 0) return count_;
    const auto head = static_cast<std::int64_t>((StreamAlignment(D()) - beyond) / sizeof(Lane));
    return std::min(head, count_);
  }

  HWY_INLINE V Mapped(std::int64_t i) { return map_.Full(Load(Source(), D(), x_ + i), i); }

  HWY_INLINE void TakeFour() {
    const D d;
    V v0 = Mapped(at_);
    V v1 = Mapped(at_ + Lanes());
    V v2 = Mapped(at_ + 2 * Lanes());
    V v3 = Mapped(at_ + 3 * Lanes());
    after_.Four(v0, v1, v2, v3, at_);
    Lane* y = y_ + at_;
    if (stream_) {
      StreamPair(Format(), d, v0, v1, y);
      StreamPair(Format(), d, v2, v3, y + 2 * Lanes());
    } else {
      StorePair(Format(), d, v0, v1, y);
      StorePair(Format(), d, v2, v3, y + 2 * Lanes());
    }
    at_ += 4 * Lanes();
  }

  // Takes the elements before `end`, without streaming.
  HWY_INLINE void TakeSome(std::int64_t end) {
    for (; at_ + Lanes() <= end; at_ += Lanes()) {
      Store(Format(), D(), after_.Full(Mapped(at_), at_), y_ + at_);
    }
    if (at_ >= end) return;
    const std::size_t left = static_cast<std::size_t>(end - at_);
    const V v = map_.Part(LoadPart(Source(), D(), x_ + at_, left), at_, left);
    StorePart(Format(), D(), after_.Part(v, at_, left), y_ + at_, left);
    at_ = end;
  }

  Map map_;
  const After after_;
  const bool stream_;
  const typename Source::Lane* const x_;
  Lane* const y_;
  const std::int64_t count_;
  std::int64_t at_ = 0;
};

template <class Source, class Target, class After, class Map>
HWY_INLINE void TransformAll(const Run& run, const Map& map) {
  Transform<Source, Target, Map, After> transform(run, map);
  transform.TakeAll();
}

// Format is the map's.
template <class Source, class Target, class Format, class Map>
HWY_INLINE void TransformRun(const Run& run, const Map& map) {
  if (run.combine != Combine::kNone) {
    TransformAll<Source, Target, JoinAfter<Format>>(run, map);
  } else if (run.epilogue.activation == Activation::kNone) {
    TransformAll<Source, Target, NothingAfter<Target>>(run, map);
  } else {
    TransformAll<Source, Target, ActivationAfter<Target>>(run, map);
  }
}

// Calls visit(piece, affine) for the part of a run in each channel.
template <class Format, class Visit>
HWY_INLINE void ForChannels(const Run& run, const ChannelRuns& channels, const Visit& visit) {
  Run piece = run;
  std::int64_t length = channels.first_count;
  const Affine* affine = channels.affines;
  for (std::int64_t at = 0; at < run.count; at += length, length = channels.spatial) {
    length = std::min(length, run.count - at);
    const auto offset = at * static_cast<std::int64_t>(sizeof(typename Format::Lane));
    piece.x = ByteAt(run.x, offset);
    piece.y = static_cast<char*>(run.y) + offset;
    piece.other = ByteAt(run.other, offset);
    piece.count = length;
    visit(piece, AffineMap<Format>(*affine++));
  }
}

template <class Format>
void Apply(const Run& run, const ChannelRuns& channels) {
  ForChannels<Format>(run, channels, [](const Run& piece, const AffineMap<Format>& map) HWY_ATTR {
    TransformRun<Format, Format, Format>(piece, map);
  });
}

// kAfter: an activation or a second tensor.
template <class Format, class Map, Presence kAfter>
HWY_NOINLINE void ApplyToRows(const Run& run, const RunSteps& steps, const ElementAffine* affines,
                              std::int64_t rows) {
  Run of_row = run;
  for (std::int64_t row = 0; row < rows; ++row) {
    if constexpr (kAfter == Presence::kAbsent) {
      TransformAll<Format, Format, NothingAfter<Format>>(of_row, Map(affines[row]));
    } else {
      TransformRun<Format, Format, Format>(of_row, Map(affines[row]));
    }
    of_row.x = ByteAt(of_row.x, steps.x);
    of_row.y = static_cast<char*>(of_row.y) + steps.y;
    of_row.other = ByteAt(of_row.other, steps.other);
  }
}

inline bool IsModulated(const ElementAffine& affine) {
  return affine.sample_scale != nullptr || affine.sample_shift != nullptr;
}

template <class Format>
void ApplyElements(const Run& run, const RunSteps& steps, const ElementAffine* affines,
                   std::int64_t rows) {
  constexpr Presence kAbsent = Presence::kAbsent;
  constexpr Presence kPresent = Presence::kPresent;
  constexpr Presence kEither = Presence::kEither;
  const bool goes_on =
      run.epilogue.activation != Activation::kNone || run.combine != Combine::kNone;
  const ElementAffine& affine = *affines;  // All rows have the same arrays.
  auto* apply = ApplyToRows<Format, ElementMap<Format, kPresent, kPresent>, kAbsent>;
  if (IsModulated(affine)) {
    const bool all = affine.sample_scale != nullptr && affine.sample_shift != nullptr;
    apply = goes_on || !all || affine.gamma != nullptr || affine.beta != nullptr
                ? ApplyToRows<Format, ModulatedMap<Format>, kEither>
                : ApplyToRows<Format, ModulatedMap<Format, kAbsent, kPresent>, kAbsent>;
  } else if (goes_on || affine.gamma == nullptr) {
    apply = ApplyToRows<Format, ElementMap<Format>, kEither>;
  } else if (affine.beta == nullptr) {
    apply = ApplyToRows<Format, ElementMap<Format, kPresent, kAbsent>, kAbsent>;
  }
  apply(run, steps, affines, rows);
}

template <class Format>
void ApplyCyclic(const Run& run, const CyclicAffine& affine) {
  TransformRun<Format, Format, Format>(run, CyclicMap<Format>(affine));
}

// Takes turns between a run and the sums of a chunk elsewhere, eight vectors each: one writes while
// the other reads memory, and neither waits for the other's kind of traffic.
template <class Format, class After, class Map>
HWY_INLINE void TransformAlong(const Run& run, const Map& map, ChunkSummer<Format>* summer) {
  Transform<Format, Format, Map, After> transform(run, map);
  transform.TakeHead();
  constexpr int kEights = ChunkSummer<Format>::kEights;
  while (transform.CanTakeEights(kEights) && summer->CanStep()) {
    summer->Step();
    for (int i = 0; i < kEights; ++i) transform.TakeEight();
  }
  transform.TakeRest();
}

template <class Format, class After>
HWY_NOINLINE Moments ApplyRunsAlong(const Run& run, const ChannelRuns& channels,
                                    const NextChunk& next) {
  const auto* x = static_cast<const typename Format::Lane*>(next.x);
  ChunkSummer<Format> summer(x, next.count, next.centered);
  ForChannels<Format>(run, channels, [&](const Run& piece, const AffineMap<Format>& map) HWY_ATTR {
    TransformAlong<Format, After>(piece, map, &summer);
  });
  return summer.Finish();
}

template <class Format>
Moments ApplyAlong(const Run& run, const ChannelRuns& channels, const NextChunk& next) {
  return run.combine == Combine::kNone
             ? ApplyRunsAlong<Format, NothingAfter<Format>>(run, channels, next)
             : ApplyRunsAlong<Format, JoinAfter<Format>>(run, channels, next);
}

template <class Format, class After, class Map>
HWY_NOINLINE Moments ApplyMapAlong(const Run& run, const ElementAffine& affine,
                                   const NextChunk& next) {
  const auto* x = static_cast<const typename Format::Lane*>(next.x);
  ChunkSummer<Format> summer(x, next.count, next.centered);
  TransformAlong<Format, After>(run, Map(affine), &summer);
  return summer.Finish();
}

template <class Format>
Moments ApplyElementsAlong(const Run& run, const ElementAffine& affine, const NextChunk& next) {
  using Nothing = NothingAfter<Format>;
  using Join = JoinAfter<Format>;
  const bool joins = run.combine != Combine::kNone;
  if (IsModulated(affine)) {
    using Map = ModulatedMap<Format>;
    return joins ? ApplyMapAlong<Format, Join, Map>(run, affine, next)
                 : ApplyMapAlong<Format, Nothing, Map>(run, affine, next);
  }
  using Map = ElementMap<Format>;
  return joins ? ApplyMapAlong<Format, Join, Map>(run, affine, next)
               : ApplyMapAlong<Format, Nothing, Map>(run, affine, next);
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_APPLY_INL_H_
