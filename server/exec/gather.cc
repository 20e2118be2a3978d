#include "server/exec/gather.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

bool IsAligned(const std::byte* data, norm::DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % norm::SizeOf(dtype) == 0;
}

// The tensor of a message; its text is made only when there is a message.
struct TensorName {
  const char* list;
  std::size_t index;
  std::string ToString() const { return absl::StrCat(list, "[", index, "]"); }
};

// Whether the lane, or the host for it, can touch memory of `place`.
absl::Status CheckPlace(const TensorName& tensor, const MemoryPlace& place,
                        const MemoryAccess& access) {
  if (place.OnHost() || access.Includes(place)) return absl::OkStatus();
  const std::string device =
      access.device
          ? absl::StrCat(" or ", MemoryPlace{MemoryKind::kDevice, *access.device}.ToString())
          : "";
  return absl::InvalidArgumentError(absl::StrCat(tensor.ToString(), ": lies in ", place.ToString(),
                                                 ", wanted host or pinned memory", device));
}

absl::Status CheckInput(const Request& request, std::size_t index, const MemoryAccess& access) {
  const Geometry& geometry = request.geometry;
  const TensorName tensor = {"inputs", index};
  std::size_t bytes = 0;
  if (index < request.inputs.size()) {
    for (const ConstBytes& view : request.inputs[index].views) bytes += view.size();
  }
  const std::int64_t wanted = index < geometry.inputs.size() ? geometry.inputs[index].bytes : 0;
  if (bytes != static_cast<std::size_t>(wanted)) {
    return absl::InternalError(
        absl::StrCat(tensor.ToString(), ": ", bytes, " bytes, wanted the tensor's ", wanted));
  }
  if (bytes == 0) return absl::OkStatus();
  const MemoryPlace& place = request.inputs[index].place;
  if (absl::Status status = CheckPlace(tensor, place, access); !status.ok()) return status;
  if (place.OnHost() || InPlaceInput(request, index) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      tensor.ToString(), ": lies in ", place.ToString(), " in several pieces or not aligned to ",
      norm::SizeOf(geometry.inputs[index].dtype), " bytes, wanted one aligned piece"));
}

absl::Status CheckOutput(const Request& request, std::size_t index, const MemoryAccess& access) {
  const TensorName tensor = {"outputs", index};
  const auto& outputs = request.geometry.outputs;
  const TensorSize wanted = index < outputs.size() ? outputs[index] : TensorSize();
  const MutableBytes named = NamedOutput(request, index);
  if (named.size() != static_cast<std::size_t>(wanted.bytes)) {
    return absl::InternalError(absl::StrCat(tensor.ToString(), ": ", named.size(),
                                            " bytes, wanted the tensor's ", wanted.bytes));
  }
  if (!IsAligned(named.data(), wanted.dtype)) {
    return absl::InternalError(
        absl::StrCat(tensor.ToString(), ": not aligned to ", norm::SizeOf(wanted.dtype), " bytes"));
  }
  return CheckPlace(tensor, request.outputs[index].place, access);
}

}  // namespace

absl::Status CheckMemory(const Request& request, const MemoryAccess& access) {
  const Geometry& geometry = request.geometry;
  for (std::size_t i = 0; i < std::max(request.inputs.size(), geometry.inputs.size()); ++i) {
    absl::Status status = CheckInput(request, i, access);
    if (!status.ok()) return status;
  }
  for (std::size_t i = 0; i < request.outputs.size(); ++i) {
    if (NamedOutput(request, i).empty()) continue;
    absl::Status status = CheckOutput(request, i, access);
    if (!status.ok()) return status;
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
