// What a lane works on at once: the requests of a batch that fit into its device memory together,
// and where each of their tensors lies.

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
    // Where it lies, if the device can read it there, on the device itself or in pinned memory;
    // null: it is gathered.
    const std::byte* there = nullptr;
    bool on_device = false;   // Then it needs no place in the arena.
    int overwritten_by = -1;  // The output that may take its place.
    std::size_t offset = 0;   // In the arena.
  };
  struct Output {
    std::size_t bytes = 0;
    Buffer block;         // Owns the memory, unless the request names it.
    MutableBytes memory;  // Where the result goes.
    bool on_device = false;
    bool addressable = false;  // The device can write it there.
    bool lent = false;         // The block goes back at once, and a copy of it is the response.
    std::size_t offset = 0;    // In the arena; not if it lies on the device.
  };
  // A request with its tensors, placed as if the arena were its own.
  struct Item {
    // `access` is the lane's, `overwrites` the program's.
    Item(std::unique_ptr<Request> request, absl::Span<const int> overwrites,
         const MemoryAccess& access);

    std::unique_ptr<Request> request;
    absl::InlinedVector<Input, kInlinedInputs> inputs;
    absl::InlinedVector<Output, kInlinedOutputs> outputs;
    bool reads_there = false;      // Some input is read where it lies, and so kept to the end.
    bool all_on_device = true;     // No tensor is copied or passes the link.
    int places = 0;                // In the arena,
    std::size_t tensor_bytes = 0;  // their bytes,
    std::size_t arena_bytes = 0;   // and those with each rounded up.
    std::size_t front_bytes = 0;   // Of the inputs that are gathered and not overwritten.
    // Of the inputs that are not on the device, or of the outputs, whichever are more.
    std::size_t link_bytes = 0;

    // Whether an output takes its place in the lane's memory, or in its block's.
    bool IsOverwritten(const Input& input) const;

   private:
    std::size_t Place(std::size_t bytes);
    void CountLink();
  };

  // The item goes behind what is there.
  void Add(Item item);

  std::vector<Item> items;
  std::size_t arena_bytes = 0;
  std::size_t front_bytes = 0;
  std::size_t link_bytes = 0;
  std::size_t request_bytes = 0;  // Of each request's inputs or of its outputs, whichever are more.
  std::size_t copied_in_bytes = 0;
  std::size_t copied_out_bytes = 0;
  StageTimes times;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_WAVE_H_
