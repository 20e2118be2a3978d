// The requests to send: a weighted mix of models, shapes and types, with tensors for each.

#ifndef NORMD_CLIENT_LOAD_WORKLOAD_H_
#define NORMD_CLIENT_LOAD_WORKLOAD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "client/tensor/random.h"
#include "client/tensor/tensor.h"

namespace normd::load {

// As in norm_service.proto, and with its numbers.
enum class Priority { kUnspecified, kLow, kNormal, kHigh };

struct InputShape {
  std::string name;  // Empty: the model's only input.
  Shape shape;
  // Above 0: its elements are int64 from 0 to below this, instead of the entry's type.
  std::int64_t values = 0;
};

// One kind of request, before its tensors are made.
struct MixEntry {
  std::string model;
  std::vector<InputShape> inputs = {{}};  // At least one.
  // The first input's shape was not given: it, and those of unnamed inputs, are still to be chosen
  // for the model.
  bool shape_from_model = false;
  norm::DType dtype = norm::DType::kFloat32;  // The type of every input except indexes.
  double weight = 1;                          // Its share is weight / the sum of the weights.
  Priority priority = Priority::kUnspecified;
  std::optional<Duration> timeout;  // The calls' deadline; nullopt: the run's.
  // Their time limit for waiting on the server; 0: their deadline.
  Duration queue_timeout{0};
  // Above 0: the inputs go through NormalizeStream, in messages of this many of their bytes.
  std::int64_t stream_chunk_bytes = 0;
  std::vector<std::string> outputs;  // The names of the wanted outputs; none: as the model says.

  bool streamed() const { return stream_chunk_bytes > 0; }

  // Sets the shape of an input, and adds the input if necessary. A first input without a name
  // becomes kFirstInput.
  void SetInput(absl::string_view name, Shape shape);

  std::string ToString() const;  // "model:2x64x56x56:float32", then the other given options.
};

// Parses "model:shape:dtype:weight", several separated by commas. The parts after the model are
// optional (shape_from_model, float32, 1), and the shape may be empty.
// After them, in any order: "priority=low" (normal, high), "timeout=20ms", "queue_timeout=5ms";
// "NAME=8x512", such as "y=8x512", for a further input of the model; "outputs=y+mean" for the
// wanted outputs; "stream" or "stream=256KiB" for one NormalizeStream call per tensor, in messages
// of this size (kDefaultChunkBytes).
// "instance_norm_64:2x64x56x56:float32:3,group_norm_64_8:1x64x28x28:priority=high". InvalidArgument
// names the entry and the field.
absl::StatusOr<std::vector<MixEntry>> ParseMix(absl::string_view text);

inline constexpr std::int64_t kDefaultChunkBytes = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxChunkBytes = std::int64_t{1} << 30;

// A kind of request with its tensors.
struct Item {
  std::size_t index = 0;  // In Workload::items.
  MixEntry entry;
  std::vector<client::Tensor> inputs;  // In the order of entry.inputs.

  std::int64_t input_bytes() const;
  std::vector<client::NamedTensor> NamedInputs() const;
  std::vector<client::TensorSpec> Specs() const;
};

// Immutable; thread-safe.
class Workload {
 public:
  // The tensors are uniform in [0, 1); their seeds follow from `seed` and the entry's place.
  // InvalidArgument for an empty mix; ResourceExhausted when the tensors do not fit into memory.
  static absl::StatusOr<Workload> Create(std::vector<MixEntry> mix, std::uint64_t seed);

  const std::vector<Item>& items() const { return items_; }
  // Picks an item by the weights; `random` belongs to the caller.
  const Item& Pick(client::SplitMix64& random) const;

 private:
  std::vector<Item> items_;
  std::vector<double> cumulative_;  // Shares up to and including each item; the last is 1.
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_WORKLOAD_H_
