// The tensors of a request that lie in regions, which its client shares with the server.

#ifndef NORMD_SERVER_ACCEPT_REGION_TENSORS_H_
#define NORMD_SERVER_ACCEPT_REGION_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/accept/description.h"
#include "server/accept/inputs.h"
#include "server/model/model.h"
#include "server/regions/region_registry.h"

namespace normd {

// The regions of a caller.
struct RegionScope {
  const RegionRegistry* registry = nullptr;  // Null: the server has no shared memory.
  absl::string_view owner;
  // The limit of a request's inputs, or outputs, outside device memory.
  std::int64_t max_host_bytes = 0;
};

// Whether any tensor of the request is in a region.
bool NamesRegions(const RequestDescription& request);

struct RegionTensors {
  // The referenced regions; they keep the memory mapped.
  absl::InlinedVector<std::shared_ptr<const Region>, 2> regions;
  // Empty, or one for each of the model's; without bytes, and nullopt, for tensors elsewhere.
  absl::InlinedVector<OutputMemory, kInlinedInputs> inputs;
  absl::InlinedVector<std::optional<RegionReference>, kInlinedOutputs> outputs;
  // Inputs whose values are checked: later writes of the client do not reach them.
  absl::InlinedVector<std::unique_ptr<std::byte[]>, 1> copies;
  // Bytes of the tensors in regions.
  struct Sum {
    std::int64_t input_bytes = 0;
    std::int64_t output_bytes = 0;
  };
  Sum on_host;
  Sum on_device;
  std::optional<int> device;  // The device of the tensors; nullopt: none are on one.

  bool any() const { return !regions.empty(); }
  // FailedPrecondition when the client has taken away a region's memory, so that the results mean
  // nothing.
  absl::Status CheckWhole() const;
};

// Finds the parts of regions that the request names; CheckData has checked their sizes. The
// outputs' parts become `outputs.memory`.
//
// Unimplemented if the server has no regions; NotFound for a region that the owner does not have;
// OutOfRange for a part that does not lie in its region; FailedPrecondition as CheckWhole.
// InvalidArgument for an output's part that is too small, not aligned to its element, or in a
// region that the server may only read; for one that overlaps an input or another output, unless it
// is exactly the input that the model may overwrite, at its address; for indexes and unaligned
// inputs in device memory; and for tensors on several devices.
// Reads nothing of the regions. Never blocks.
absl::StatusOr<RegionTensors> FindRegionTensors(const RegionScope& scope, const Model& model,
                                                const RequestDescription& request,
                                                const CheckedInputs& inputs,
                                                PlacedOutputs& outputs);

// Replaces index inputs by copies, which its caller has admitted, and checks these. InvalidArgument
// for an invalid index.
absl::Status CopyIndexes(const Model& model, RegionTensors& tensors);

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_REGION_TENSORS_H_
