#include "server/exec/gather.h"

#include <algorithm>
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
  const Geometry& geometry = request.geometry;
  for (std::size_t i = 0; i < std::max(request.inputs.size(), geometry.inputs.size()); ++i) {
    std::size_t bytes = 0;
    if (i < request.inputs.size()) {
      for (const ConstBytes& view : request.inputs[i].views) bytes += view.size();
    }
    const auto wanted =
        i < geometry.inputs.size() ? static_cast<std::size_t>(geometry.inputs[i].bytes) : 0;
    if (bytes != wanted) {
      return absl::InternalError(
          absl::StrCat("inputs[", i, "]: ", bytes, " bytes, wanted the tensor's ", wanted));
    }
  }
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    const MutableBytes named = NamedOutput(request, i);
    if (named.empty()) continue;
    const TensorSize wanted = i < geometry.outputs.size() ? geometry.outputs[i] : TensorSize{};
    if (named.size() != static_cast<std::size_t>(wanted.bytes)) {
      return absl::InternalError(absl::StrCat("outputs[", i, "]: ", named.size(),
                                              " bytes, wanted the tensor's ", wanted.bytes));
    }
    if (!IsAligned(named.data(), wanted.dtype)) {
      return absl::InternalError(
          absl::StrCat("outputs[", i, "]: not aligned to ", norm::SizeOf(wanted.dtype), " bytes"));
    }
  }
  return absl::OkStatus();
}

MutableBytes NamedOutput(const Request& request, std::size_t index) {
  return index < request.outputs.size() ? request.outputs[index].bytes : MutableBytes();
}

const std::byte* InPlaceInput(const Request& request, std::size_t index) {
  const std::byte* first = nullptr;
  const std::byte* end = nullptr;
  for (const ConstBytes& view : request.inputs[index].views) {
    if (view.empty()) continue;
    if (first == nullptr) {
      first = view.data();
    } else if (view.data() != end) {
      return nullptr;
    }
    end = view.data() + view.size();
  }
  return IsAligned(first, request.geometry.inputs[index].dtype) ? first : nullptr;
}

void GatherInput(const Request& request, std::size_t index, std::byte* to) {
  for (const ConstBytes& view : request.inputs[index].views) {
    if (view.empty()) continue;
    std::memcpy(to, view.data(), view.size());
    to += view.size();
  }
}

}  // namespace normd
