#include "server/exec/gather.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

bool IsAligned(const std::byte* data, norm::DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % norm::SizeOf(dtype) == 0;
}

}  // namespace

absl::Status CheckMemory(const Request& request) {
  const auto wanted = static_cast<std::size_t>(request.geometry.bytes);
  std::size_t input_bytes = 0;
  for (const ConstBytes& view : request.input) input_bytes += view.size();
  if (input_bytes != wanted) {
    return absl::InternalError(
        absl::StrCat("input: ", input_bytes, " bytes, wanted the tensor's ", wanted));
  }
  if (request.output.empty()) return absl::OkStatus();
  if (request.output.size() != wanted) {
    return absl::InternalError(
        absl::StrCat("output: ", request.output.size(), " bytes, wanted the tensor's ", wanted));
  }
  if (!IsAligned(request.output.data(), request.dtype)) {
    return absl::InternalError(
        absl::StrCat("output: not aligned to ", norm::SizeOf(request.dtype), " bytes"));
  }
  return absl::OkStatus();
}

const std::byte* InPlaceInput(const Request& request) {
  const std::byte* first = nullptr;
  const std::byte* end = nullptr;
  for (const ConstBytes& view : request.input) {
    if (view.empty()) continue;
    if (first == nullptr) {
      first = view.data();
    } else if (view.data() != end) {
      return nullptr;
    }
    end = view.data() + view.size();
  }
  return IsAligned(first, request.dtype) ? first : nullptr;
}

void GatherInput(Request& request, std::byte* to) {
  for (const ConstBytes& view : request.input) {
    if (view.empty()) continue;
    std::memcpy(to, view.data(), view.size());
    to += view.size();
  }
  request.input.clear();
  request.input_owner.reset();
}

}  // namespace normd
