// The methods of the Open Inference Protocol that compute nothing, for any transport.

#ifndef NORMD_SERVER_INFER_INFER_METHODS_H_
#define NORMD_SERVER_INFER_INFER_METHODS_H_

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "inference/grpc_service.pb.h"
#include "server/accept/control_call.h"
#include "server/accept/environment.h"
#include "server/regions/region.h"

namespace normd {

// The bodies of their calls. docs/open_inference_protocol.md says what each does. Thread-safe.
class InferMethods {
 public:
  // `environment` outlives it. `ready` says whether the server is; thread-safe.
  InferMethods(AcceptEnvironment& environment, std::function<bool()> ready, std::string version)
      : environment_(environment), ready_(std::move(ready)), version_(std::move(version)) {}

  template <typename Request, typename Response>
  using Body = absl::Status(const Request& wanted, Response& answer, ControlCall& call) const;
  Body<inference::ServerLiveRequest, inference::ServerLiveResponse> ServerLive;
  Body<inference::ServerReadyRequest, inference::ServerReadyResponse> ServerReady;
  Body<inference::ModelReadyRequest, inference::ModelReadyResponse> ModelReady;
  Body<inference::ServerMetadataRequest, inference::ServerMetadataResponse> ServerMetadata;
  Body<inference::ModelMetadataRequest, inference::ModelMetadataResponse> ModelMetadata;
  Body<inference::ModelConfigRequest, inference::ModelConfigResponse> ModelConfig;
  Body<inference::ModelStatisticsRequest, inference::ModelStatisticsResponse> ModelStatistics;
  Body<inference::RepositoryIndexRequest, inference::RepositoryIndexResponse> RepositoryIndex;
  Body<inference::RepositoryModelLoadRequest, inference::RepositoryModelLoadResponse> Load;
  Body<inference::RepositoryModelUnloadRequest, inference::RepositoryModelUnloadResponse> Unload;
  Body<inference::SystemSharedMemoryStatusRequest, inference::SystemSharedMemoryStatusResponse>
      SystemStatus;
  Body<inference::SystemSharedMemoryRegisterRequest, inference::SystemSharedMemoryRegisterResponse>
      SystemRegister;
  Body<inference::SystemSharedMemoryUnregisterRequest,
       inference::SystemSharedMemoryUnregisterResponse>
      SystemUnregister;
  Body<inference::CudaSharedMemoryStatusRequest, inference::CudaSharedMemoryStatusResponse>
      CudaStatus;
  Body<inference::CudaSharedMemoryRegisterRequest, inference::CudaSharedMemoryRegisterResponse>
      CudaRegister;
  Body<inference::CudaSharedMemoryUnregisterRequest, inference::CudaSharedMemoryUnregisterResponse>
      CudaUnregister;
  Body<inference::TraceSettingRequest, inference::TraceSettingResponse> TraceSetting;
  Body<inference::LogSettingsRequest, inference::LogSettingsResponse> LogSettings;

  // For a front end that keeps its index.
  static absl::Status CheckIndex(const inference::RepositoryIndexRequest& wanted);

 private:
  absl::Status Unregister(const std::string& name, RegionKind kind, ControlCall& call) const;

  AcceptEnvironment& environment_;
  const std::function<bool()> ready_;
  const std::string version_;
};

// A method's name in rights and metrics, its body, and where that runs.
template <typename Request, typename Response>
struct InferMethod {
  Method method;
  absl::Status (InferMethods::*body)(const Request&, Response&, ControlCall&) const;
  ControlPlace place = ControlPlace::kHere;
};
// clang++ 14 deduces no aggregates by itself.
template <typename Request, typename Response>
InferMethod(Method, absl::Status (InferMethods::*)(const Request&, Response&, ControlCall&) const,
            ControlPlace = ControlPlace::kHere) -> InferMethod<Request, Response>;

namespace infer {

inline constexpr InferMethod kServerLive{Method::kServerLive, &InferMethods::ServerLive};
inline constexpr InferMethod kServerReady{Method::kServerReady, &InferMethods::ServerReady};
inline constexpr InferMethod kModelReady{Method::kModelReady, &InferMethods::ModelReady};
inline constexpr InferMethod kServerMetadata{Method::kServerMetadata,
                                             &InferMethods::ServerMetadata};
inline constexpr InferMethod kModelMetadata{Method::kModelMetadata, &InferMethods::ModelMetadata};
inline constexpr InferMethod kModelConfig{Method::kModelConfig, &InferMethods::ModelConfig};
inline constexpr InferMethod kModelStatistics{Method::kModelStatistics,
                                              &InferMethods::ModelStatistics, ControlPlace::kLists};
inline constexpr InferMethod kRepositoryIndex{Method::kRepositoryIndex,
                                              &InferMethods::RepositoryIndex, ControlPlace::kLists};
inline constexpr InferMethod kRepositoryModelLoad{Method::kRepositoryModelLoad, &InferMethods::Load,
                                                  ControlPlace::kLoads};
inline constexpr InferMethod kRepositoryModelUnload{Method::kRepositoryModelUnload,
                                                    &InferMethods::Unload, ControlPlace::kLoads};
inline constexpr InferMethod kSystemSharedMemoryStatus{
    Method::kSharedMemoryStatus, &InferMethods::SystemStatus, ControlPlace::kLists};
inline constexpr InferMethod kSystemSharedMemoryRegister{Method::kSharedMemoryRegister,
                                                         &InferMethods::SystemRegister};
inline constexpr InferMethod kSystemSharedMemoryUnregister{Method::kSharedMemoryUnregister,
                                                           &InferMethods::SystemUnregister};
inline constexpr InferMethod kCudaSharedMemoryStatus{
    Method::kCudaSharedMemory, &InferMethods::CudaStatus, ControlPlace::kLists};
inline constexpr InferMethod kCudaSharedMemoryRegister{Method::kCudaSharedMemory,
                                                       &InferMethods::CudaRegister};
inline constexpr InferMethod kCudaSharedMemoryUnregister{Method::kCudaSharedMemory,
                                                         &InferMethods::CudaUnregister};
inline constexpr InferMethod kTraceSetting{Method::kTraceSetting, &InferMethods::TraceSetting};
inline constexpr InferMethod kLogSettings{Method::kLogSettings, &InferMethods::LogSettings};

}  // namespace infer
}  // namespace normd

#endif  // NORMD_SERVER_INFER_INFER_METHODS_H_
