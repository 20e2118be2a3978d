#include "server/exec/device/pinned_stager.h"

#include <optional>
#include <utility>

#include "server/exec/gather.h"

namespace normd {

void PinnedStager::Stage(Request& request) {
  const std::int64_t bytes = request.geometry.InputBytes();
  if (bytes <= min_bytes_ || bytes > max_bytes_) return;
  for (const InputMemory& input : request.inputs) {
    if (input.place.kind != MemoryKind::kHost) return;
  }
  if (!CheckMemory(request, MemoryAccess()).ok()) return;
  const PoolUse use = pool_.use();
  if (use.free_bytes < (use.free_bytes + use.used_bytes) / 4) return;
  const TimePoint begin = clock_.Now();
  absl::InlinedVector<std::size_t, kInlinedInputs> offsets;
  std::size_t total = 0;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    offsets.push_back(AlignForDevice(total));
    total = offsets.back() + static_cast<std::size_t>(request.geometry.inputs[i].bytes);
  }
  std::optional<Buffer> block = pool_.Take(total);
  if (!block) return;
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    std::byte* to = block->data() + offsets[i];
    GatherInput(request, i, to);
    const auto size = static_cast<std::size_t>(request.geometry.inputs[i].bytes);
    request.inputs[i].views.assign(1, ConstBytes(to, size));
    request.inputs[i].place.kind = MemoryKind::kPinned;
  }
  request.input_owner.reset();
  request.staged = *std::move(block);
  request.stages[Stage::kGather] = clock_.Now() - begin;
}

}  // namespace normd
