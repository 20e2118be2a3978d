#include "server/exec/device/result_memory.h"

#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

std::optional<Buffer> TakePageable(std::size_t bytes) {
  constexpr std::align_val_t kAlignment{kDeviceAlignment};
  auto* data =
      static_cast<std::byte*>(::operator new(AlignForDevice(bytes), kAlignment, std::nothrow));
  if (data == nullptr) return std::nullopt;
  return Buffer(data, bytes, [data] { ::operator delete(data, kAlignment); });
}

}  // namespace

void ResultMemory::Take(const DeviceProgram& program, DeviceWave& wave) {
  for (DeviceWave::Item& item : wave.items) {
    absl::Status status;
    for (std::size_t i = 0; i < item.outputs.size() && status.ok(); ++i) {
      status = TakeOutput(program, item, i);
    }
    if (!status.ok()) Fail(std::move(item.request), std::move(status));
  }
  std::erase_if(wave.items, [](const DeviceWave::Item& item) { return item.request == nullptr; });
}

absl::Status ResultMemory::TakeOutput(const DeviceProgram& program, DeviceWave::Item& item,
                                      std::size_t index) {
  DeviceWave::Output& output = item.outputs[index];
  if (output.bytes == 0 || !output.memory.empty()) return absl::OkStatus();
  std::optional<Buffer> block = TakeBlock(program, *item.request, index);
  output.addressable = block.has_value();
  output.lent = output.addressable && pool_.IsScarce();
  if (!block) block = TakePageable(output.bytes);
  if (!block) {
    return absl::ResourceExhaustedError(
        absl::StrCat("output: no memory for ", output.bytes, " bytes"));
  }
  output.block = *std::move(block);
  output.memory = MutableBytes(output.block.data(), output.bytes);
  return absl::OkStatus();
}

// If the kernels may overwrite a staged input, the device writes where the receiving thread wrote,
// and half as much memory passes through the caches.
std::optional<Buffer> ResultMemory::TakeBlock(const DeviceProgram& program, Request& request,
                                              std::size_t index) {
  const bool overwrites = request.inputs.size() == 1 && program.overwrites()[index] == 0;
  if (request.IsStaged() && overwrites) return std::move(request.staged);
  return pool_.Take(static_cast<std::size_t>(request.geometry.outputs[index].bytes));
}

OutputBuffers ResultMemory::HandOut(DeviceWave::Item& item) {
  OutputBuffers buffers;
  for (DeviceWave::Output& output : item.outputs) {
    if (output.lent) ReturnLent(*item.request, output);
    buffers.push_back(std::move(output.block));
  }
  return buffers;
}

// Without ordinary memory the response keeps the block.
void ResultMemory::ReturnLent(Request& request, DeviceWave::Output& output) {
  const TimePoint begin = clock_.Now();
  std::optional<Buffer> copy = TakePageable(output.bytes);
  if (!copy) return;
  std::memcpy(copy->data(), output.memory.data(), output.bytes);
  output.block = *std::move(copy);
  request.stages[Stage::kCopyOut] += clock_.Now() - begin;
}

}  // namespace normd
