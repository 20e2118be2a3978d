// The buffer of the accumulation type between stages. Included once per target by foreach_target.h.

#if defined(NORMD_KERNELS_CPU_BUFFER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef NORMD_KERNELS_CPU_BUFFER_INL_H_
#undef NORMD_KERNELS_CPU_BUFFER_INL_H_
#else
#define NORMD_KERNELS_CPU_BUFFER_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace normd::norm::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The buffer's format.
template <class Acc>
using BufferFormat = std::conditional_t<std::is_same_v<Acc, double>, Float64, Float32>;

// Read vectors of tensor memory or of a buffer: all lanes, or the first `count`.
template <class Format>
struct FullLoader {
  HWY_INLINE hn::Vec<AccTag<Format>> Memory(const typename Format::Lane* p) const {
    return Load(Format(), AccTag<Format>(), p);
  }
  HWY_INLINE hn::Vec<AccTag<Format>> Buffer(const typename Format::Acc* p) const {
    return hn::LoadU(AccTag<Format>(), p);
  }
};

template <class Format>
struct PartLoader {
  std::size_t count;

  HWY_INLINE hn::Vec<AccTag<Format>> Memory(const typename Format::Lane* p) const {
    return LoadPart(Format(), AccTag<Format>(), p, count);
  }
  HWY_INLINE hn::Vec<AccTag<Format>> Buffer(const typename Format::Acc* p) const {
    return LoadPart(BufferFormat<typename Format::Acc>(), AccTag<Format>(), p, count);
  }
};

// Calls body(i) for full vectors and part(i, n) for the rest.
template <class D, class Body, class Part>
HWY_INLINE void ForVectors(D d, std::int64_t count, const Body& body, const Part& part) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t at = 0;
  for (; at + 4 * lanes <= count; at += 4 * lanes) {
    body(at);
    body(at + lanes);
    body(at + 2 * lanes);
    body(at + 3 * lanes);
  }
  for (; at + lanes <= count; at += lanes) body(at);
  if (at < count) part(at, static_cast<std::size_t>(count - at));
}

}  // namespace HWY_NAMESPACE
}  // namespace normd::norm::cpu
HWY_AFTER_NAMESPACE();

#endif  // NORMD_KERNELS_CPU_BUFFER_INL_H_
