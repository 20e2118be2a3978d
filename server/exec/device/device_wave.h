// A lane's current work: the requests of a batch that fit into its device memory together, and the
// places of their tensors.

#ifndef NORMD_SERVER_EXEC_DEVICE_DEVICE_WAVE_H_
#define NORMD_SERVER_EXEC_DEVICE_DEVICE_WAVE_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "base/bytes.h"
#include "server/batching/request.h"
#include "server/exec/memory_access.h"
#include "server/exec/slice_reader.h"

namespace normd {

// Used by one thread.
class DeviceWave {
 public:
  static constexpr std::size_t kAlignment = 256;

  static std::size_t RoundUp(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  struct Input {
    SliceReader reader;
    std::size_t bytes = 0;
    // Its place if the device can read it there, on the device itself or in pinned memory; null: it
    // is gathered.
    const std::byte* there = nullptr;
    bool on_device = false;   // It then needs no place in the arena.
    int overwritten_by = -1;  // The output that may replace it.
    std::size_t offset = 0;   // In the arena.
  };
  struct Output {
    std::size_t bytes = 0;
    Buffer block;         // Owns the memory, unless the request names it.
    MutableBytes memory;  // The place of the result.
    bool on_device = false;
    bool addressable = false;  // The device can write it there.
    bool lent = false;         // The block is returned at once, and the response is a copy of it.
    std::size_t offset = 0;    // In the arena; unused if it lies on the device.
  };
  // A request with its tensors, placed as if it had the arena alone.
  struct Item {
    // `access` is the lane's, `overwrites` the program's.
    Item(std::unique_ptr<Request> request, absl::Span<const int> overwrites,
         const MemoryAccess& access);

    std::unique_ptr<Request> request;
    absl::InlinedVector<Input, kInlinedInputs> inputs;
    absl::InlinedVector<Output, kInlinedOutputs> outputs;
    bool reads_there = false;      // Some input is read in place, and so kept to the end.
    bool all_on_device = true;     // No tensor is copied or passes the link.
    int places = 0;                // Places in the arena.
    std::size_t tensor_bytes = 0;  // Their bytes.
    std::size_t arena_bytes = 0;   // Their bytes, each rounded up.
    std::size_t front_bytes = 0;   // Bytes of the inputs that are gathered and not overwritten.
    // Bytes of the inputs that are not on the device, or of the outputs, whichever are more.
    std::size_t link_bytes = 0;

    // Whether an output replaces it in the lane's memory, or in its block.
    bool IsOverwritten(const Input& input) const;

   private:
    std::size_t Place(std::size_t bytes);
    void CountLink();
  };

  // Appends the item.
  void Add(Item item);

  std::vector<Item> items;
  std::size_t arena_bytes = 0;
  std::size_t front_bytes = 0;
  std::size_t link_bytes = 0;
  // Bytes of each request's inputs or of its outputs, whichever are more.
  std::size_t request_bytes = 0;
  std::size_t copied_in_bytes = 0;
  std::size_t copied_out_bytes = 0;
  StageTimes times;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_WAVE_H_
