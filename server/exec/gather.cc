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
  for (std::size_t i = 0; i < kMaxInputs; ++i) {
    std::size_t input_bytes = 0;
    if (i < request.inputs.size()) {
      for (const ConstBytes& view : request.inputs[i]) input_bytes += view.size();
    }
    const auto wanted = static_cast<std::size_t>(request.geometry.input_bytes[i]);
    if (input_bytes != wanted) {
      return absl::InternalError(
          absl::StrCat("inputs[", i, "]: ", input_bytes, " bytes, wanted the tensor's ", wanted));
    }
  }
  if (request.output.empty()) return absl::OkStatus();
  const auto wanted = static_cast<std::size_t>(request.geometry.bytes);
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

const std::byte* InPlaceInput(const Request& request, std::size_t index) {
  const std::byte* first = nullptr;
  const std::byte* end = nullptr;
  for (const ConstBytes& view : request.inputs[index]) {
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

void GatherInput(const Request& request, std::size_t index, std::byte* to) {
  for (const ConstBytes& view : request.inputs[index]) {
    if (view.empty()) continue;
    std::memcpy(to, view.data(), view.size());
    to += view.size();
  }
}

}  // namespace normd
