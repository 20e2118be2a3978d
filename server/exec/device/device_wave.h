// A batch's way through a lane: the requests that fit into its device memory together, and the
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
#include "server/exec/device/device_program.h"
#include "server/exec/device/pieces.h"
#include "server/exec/memory_access.h"
#include "server/exec/slice_reader.h"

namespace normd {

// A lane's current work. Used by one thread.
struct DeviceWave {
  struct Input {
    SliceReader reader;
    std::size_t bytes = 0;
    // Its place if the device can read it there, on the device itself or in pinned memory; null: it
    // is gathered.
    const std::byte* there = nullptr;
    bool on_device = false;  // It then needs no place in the arena.
    // The output that replaces it in the lane's memory, or in its block; -1: none.
    int overwritten_by = -1;
    std::size_t offset = 0;            // In the arena.
    const std::byte* place = nullptr;  // Where the kernels read it; set by the computation.
  };
  struct Output {
    std::size_t bytes = 0;
    Buffer block;         // Owns the memory, unless the request names it.
    MutableBytes memory;  // The place of the result.
    bool on_device = false;
    bool addressable = false;    // The device can write it there.
    bool lent = false;           // The block is returned at once, and the response is a copy of it.
    std::size_t offset = 0;      // In the arena; unused if it lies on the device.
    std::byte* place = nullptr;  // Where the kernels write it; set by the computation.
  };
  // A request with its tensors, placed as if it had the arena alone.
  struct Item {
    // `access` is the lane's, `overwrites` the program's.
    Item(std::unique_ptr<Request> request, absl::Span<const int> overwrites,
         const MemoryAccess& access);

    // A part of the request, for the kernels. Requires the places.
    DeviceSegment Segment(const PieceSegment& part, const ChannelRange& channels) const;
    // Call when every input that is gathered has been read.
    void ReleaseInputs() {
      if (!reads_there) request->ReleaseInputs();
    }

    std::unique_ptr<Request> request;
    absl::InlinedVector<Input, kInlinedInputs> inputs;
    absl::InlinedVector<Output, kInlinedOutputs> outputs;
    bool reads_there = false;        // Some input is read in place, and so kept to the end.
    int places = 0;                  // Places in the arena.
    std::size_t tensor_bytes = 0;    // Their bytes.
    std::size_t arena_bytes = 0;     // Their bytes, each rounded up.
    std::size_t front_bytes = 0;     // Bytes of the inputs that are gathered and not overwritten.
    std::size_t link_in_bytes = 0;   // Bytes of the inputs that are not on the device,
    std::size_t link_out_bytes = 0;  // and of the outputs.

   private:
    std::size_t Place(std::size_t bytes);
  };

  // Appends the item.
  void Add(Item item);

  std::vector<Item> items;
  std::size_t arena_bytes = 0;
  std::size_t front_bytes = 0;
  std::size_t link_bytes = 0;  // Each item's bytes in or out, whichever are more.
  // Bytes of each request's inputs or of its outputs, whichever are more.
  std::size_t request_bytes = 0;
  std::size_t copied_in_bytes = 0;
  std::size_t copied_out_bytes = 0;
  StageTimes times;
};

// Divides a batch into waves for an arena. They keep the order of the requests, but a large batch
// has those with tensors on a device first: where nothing needs a copy, they are waves of their
// own, because these need no pieces. Requests without elements are part of either.
class DeviceWaves {
 public:
  // Borrows the batch and `overwrites`.
  DeviceWaves(Batch& batch, bool large, absl::Span<const int> overwrites,
              const MemoryAccess& access, std::size_t arena_bytes);

  bool Done() const { return next_ == batch_.requests.size(); }
  // Takes the requests of the next wave from the batch. One that is larger than the arena fails
  // with ResourceExhausted and the numbers, so a wave may be empty.
  DeviceWave Next();

 private:
  Batch& batch_;
  const bool large_;
  const absl::Span<const int> overwrites_;
  const MemoryAccess access_;
  const std::size_t arena_bytes_;
  std::size_t next_ = 0;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_WAVE_H_
