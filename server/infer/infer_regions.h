// The Open Inference Protocol's calls for registering shared memory.

#ifndef NORMD_SERVER_INFER_INFER_REGIONS_H_
#define NORMD_SERVER_INFER_INFER_REGIONS_H_

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "inference/grpc_service.pb.h"
#include "server/regions/region_registry.h"

namespace normd {

// The registry is null if the server has no shared memory: Unimplemented.

absl::Status RegisterRegion(RegionRegistry* registry, absl::string_view owner,
                            const inference::SystemSharedMemoryRegisterRequest& request,
                            LockWait wait);
absl::Status RegisterRegion(RegionRegistry* registry, absl::string_view owner,
                            const inference::CudaSharedMemoryRegisterRequest& request);

// How the call treats requests that use a region.
enum class Unregistering {
  kFinish,  // They keep it; the call ends at once.
  kRefuse,  // FailedPrecondition while there are any.
  kWait,    // They keep it, and the call ends when it is unmapped.
};

// The owner's regions of one kind, kNamed or kDevice: one, or all if `name` is empty.
struct WantedRegions {
  absl::string_view owner;
  absl::string_view name;
  RegionKind kind = RegionKind::kNamed;
};

// With kWait, `until_gone` is kept as long as any of them is mapped.
absl::Status UnregisterRegions(RegionRegistry* registry, const WantedRegions& wanted,
                               Unregistering how, const std::shared_ptr<void>& until_gone);
absl::Status AddRegions(RegionRegistry* registry, absl::string_view owner, absl::string_view name,
                        inference::SystemSharedMemoryStatusResponse& response);
absl::Status AddRegions(RegionRegistry* registry, absl::string_view owner, absl::string_view name,
                        inference::CudaSharedMemoryStatusResponse& response);

// The call's metadata kInUse: "finish", which is the default, "refuse" or "wait". InvalidArgument
// for anything else.
inline constexpr absl::string_view kInUse = "normd-in-use";
absl::StatusOr<Unregistering> UnregisteringOf(std::optional<absl::string_view> in_use);

}  // namespace normd

#endif  // NORMD_SERVER_INFER_INFER_REGIONS_H_
