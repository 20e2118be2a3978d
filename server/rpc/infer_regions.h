// The Open Inference Protocol's calls that register shared memory.

#ifndef NORMD_SERVER_RPC_INFER_REGIONS_H_
#define NORMD_SERVER_RPC_INFER_REGIONS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"
#include "inference/grpc_service.pb.h"
#include "server/regions/region_registry.h"

namespace normd {

// The registry is null where the server has no shared memory: Unimplemented.

absl::Status RegisterRegion(RegionRegistry* registry, absl::string_view owner,
                            const inference::SystemSharedMemoryRegisterRequest& request);
// One region of the owner's, or all where `name` is empty.
absl::Status UnregisterRegions(RegionRegistry* registry, absl::string_view owner,
                               absl::string_view name, InUse in_use);
absl::Status AddRegions(RegionRegistry* registry, absl::string_view owner, absl::string_view name,
                        inference::SystemSharedMemoryStatusResponse& response);

// What a call asks for with the metadata `normd-in-use`: "finish", which is the default, or
// "refuse". InvalidArgument for anything else.
absl::StatusOr<InUse> InUseOf(const grpc::CallbackServerContext& context);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_INFER_REGIONS_H_
