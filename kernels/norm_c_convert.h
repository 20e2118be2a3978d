// Conversions that the C ABI's sources share: its structures to those of the C++ contract, and
// errors to results.

#ifndef NORMD_KERNELS_NORM_C_CONVERT_H_
#define NORMD_KERNELS_NORM_C_CONVERT_H_

#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#include "kernels/linear_norm.h"
#include "kernels/norm.h"
#include "kernels/norm_c.h"

namespace normd::norm::c {

// A caller's tensors as segments, with the parameters that some of them have.
class Segments {
 public:
  // Both may allocate. InvalidArgument for a null array, and for a batch or parameters that are
  // smaller than in version 1.
  Status Take(const norm_segment* segments, std::size_t count);
  Status Take(const norm_batch* batch);

  const Segment* data() const { return count_ <= kInline ? inline_ : many_.get(); }
  std::size_t size() const { return count_; }

 private:
  // A call with one segment allocates nothing. Room for more would be cleared in every call.
  static constexpr std::size_t kInline = 1;
  Segment* Resize(std::size_t count);

  std::size_t count_ = 0;
  Segment inline_[kInline];
  std::unique_ptr<Segment[]> many_;
  std::vector<NormParams> params_;  // Never grows beyond its reserve: segments point to elements.
};

// The caller's segments are used in place.
static_assert(sizeof(norm_linear_segment) == sizeof(LinearNormSegment) &&
              alignof(norm_linear_segment) == alignof(LinearNormSegment));
static_assert(std::is_standard_layout_v<LinearNormSegment> &&
              offsetof(LinearNormSegment, x) == offsetof(norm_linear_segment, x) &&
              offsetof(LinearNormSegment, y) == offsetof(norm_linear_segment, y) &&
              offsetof(LinearNormSegment, out) == offsetof(norm_linear_segment, out) &&
              offsetof(LinearNormSegment, samples) == offsetof(norm_linear_segment, samples));
inline const LinearNormSegment* ToSegments(const norm_linear_segment* segments) {
  return reinterpret_cast<const LinearNormSegment*>(segments);
}

// InvalidArgument if the structure is null or smaller than in version 1. The backends check the
// values.
Status ToSpec(const norm_spec* in, NormSpec* out);
Status ToParams(const norm_params* in, NormParams* out);
Status ToLinearSpec(const norm_linear_spec* in, LinearNormSpec* out);
Status ToLinearParams(const norm_linear_params* in, LinearNormParams* out);
Status CheckSegments(const void* segments, std::size_t count);
Status CheckStructSize(const char* name, std::size_t got, std::size_t wanted);
Status CheckNotNull(const char* name, const void* pointer);

// Keep the message for norm_last_error. The second allocates nothing.
norm_result ToResult(const Status& status) noexcept;
norm_result ToResult(StatusCode code, const char* message) noexcept;

// Runs call(), which returns a Status, and lets no exception out.
template <typename Call>
norm_result Guarded(const Call& call) noexcept {
  try {
    return ToResult(call());
  } catch (const std::bad_alloc&) {
    return ToResult(StatusCode::kOutOfMemory, "out of host memory");
  } catch (const std::exception& error) {
    return ToResult(StatusCode::kDeviceError, error.what());
  } catch (...) {
    return ToResult(StatusCode::kDeviceError, "unknown exception");
  }
}

}  // namespace normd::norm::c

#endif  // NORMD_KERNELS_NORM_C_CONVERT_H_
