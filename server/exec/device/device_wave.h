// What a lane works on at once: the requests of a batch that fit into its device memory together.

#ifndef NORMD_SERVER_EXEC_DEVICE_DEVICE_WAVE_H_
#define NORMD_SERVER_EXEC_DEVICE_DEVICE_WAVE_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "base/buffer.h"
#include "base/bytes.h"
#include "server/batching/request.h"
#include "server/exec/slice_reader.h"

namespace normd {

// Used by one thread.
struct DeviceWave {
  static constexpr std::size_t kAlignment = 256;

  static std::size_t RoundUp(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  struct Item {
    std::unique_ptr<Request> request;
    absl::InlinedVector<SliceReader, kMaxInputs> readers;  // One for each input.
    Buffer block;              // Owns the output, unless the request names its memory.
    MutableBytes output;       // Of the request's size.
    bool staged = false;       // The inputs lie where the device can read them.
    bool lent = false;         // The block goes back at once, and a copy of it is the response.
    std::size_t x_offset = 0;  // Of the first input in the arena.
    // Of the result. It takes the place of the last input that has its size: a norm's only one, a
    // fused layer's y.
    std::size_t result_offset = 0;
  };

  // What lies in front of the result: a fused layer's x, which does not have its size.
  static std::size_t FrontBytes(const Request& request) {
    return request.model->linear() == nullptr
               ? 0
               : static_cast<std::size_t>(request.geometry.input_bytes[0]);
  }
  static std::size_t TensorBytes(const Request& request) {
    return FrontBytes(request) + static_cast<std::size_t>(request.geometry.bytes);
  }
  static std::size_t ArenaBytes(const Request& request) {
    return RoundUp(FrontBytes(request)) + RoundUp(static_cast<std::size_t>(request.geometry.bytes));
  }

  void Add(std::unique_ptr<Request> request) {
    const Geometry& geometry = request->geometry;
    Item& item = items.emplace_back();
    for (const ByteViews& input : request->inputs) {
      item.readers.emplace_back(absl::MakeConstSpan(input));
    }
    item.x_offset = arena_bytes;
    item.result_offset = arena_bytes + RoundUp(FrontBytes(*request));
    front_bytes += RoundUp(FrontBytes(*request));
    arena_bytes += ArenaBytes(*request);
    link_bytes += static_cast<std::size_t>(geometry.LargerBytes());
    item.staged = request->IsStaged();
    item.request = std::move(request);
  }

  std::vector<Item> items;
  std::size_t arena_bytes = 0;
  std::size_t front_bytes = 0;  // In front of results, each rounded up.
  std::size_t link_bytes = 0;   // Of all inputs or of all results, whichever is more of each.
  std::size_t copied_in_bytes = 0;
  std::size_t copied_out_bytes = 0;
  StageTimes times;
};

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_DEVICE_DEVICE_WAVE_H_
