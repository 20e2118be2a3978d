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

// Where a caller's regions are found.
struct RegionScope {
  const RegionRegistry* registry = nullptr;  // Null: the server has no shared memory.
  absl::string_view owner;
  std::int64_t max_host_bytes = 0;  // Of a request's inputs, or outputs, that lie on no device.
};

// Whether any tensor of the request is to be in a region.
bool NamesRegions(const RequestDescription& request);

struct RegionTensors {
  // What the references are to; as long as they are here, the memory is mapped.
  absl::InlinedVector<std::shared_ptr<const Region>, 2> regions;
  // Empty, or one for each of the model's; no bytes, and nullopt, for what lies elsewhere.
  absl::InlinedVector<OutputMemory, kInlinedInputs> inputs;
  absl::InlinedVector<std::optional<RegionReference>, kInlinedOutputs> outputs;
  // Inputs whose values are checked: what the client writes later does not reach them.
  absl::InlinedVector<std::unique_ptr<std::byte[]>, 1> copies;
  // Of those that lie in regions.
  struct Sum {
    std::int64_t input_bytes = 0;
    std::int64_t output_bytes = 0;
  };
  Sum on_host;
  Sum on_device;
  std::optional<int> device;  // On which tensors lie; nullopt: none do.

  bool any() const { return !regions.empty(); }
  // FailedPrecondition when the client has taken memory of a region away, so that what was computed
  // means nothing.
  absl::Status CheckWhole() const;
};

// Finds the parts of regions that the request names, whose sizes CheckData has judged; those of its
// outputs become `outputs.memory`.
//
// Unimplemented where the server has no regions; NotFound for one that the owner does not have;
// OutOfRange for a part that does not lie in its region; InvalidArgument for an output's part that
// is too small, not aligned to its element, of a region that the server may only read, or that
// overlaps an input or another output, unless it is exactly the input that the model may overwrite,
// at its address, for indexes and inputs that are not aligned in memory of a device, and for
// tensors on several devices; FailedPrecondition as CheckWhole.
// Reads nothing of the regions. Never blocks.
absl::StatusOr<RegionTensors> FindRegionTensors(const RegionScope& scope, const Model& model,
                                                const RequestDescription& request,
                                                const CheckedInputs& inputs,
                                                PlacedOutputs& outputs);

// Replaces the inputs of indexes by copies, which its caller has admitted, and checks these.
// InvalidArgument for an index that is none.
absl::Status CopyIndexes(const Model& model, RegionTensors& tensors);

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_REGION_TENSORS_H_
