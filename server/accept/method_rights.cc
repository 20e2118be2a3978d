#include "server/accept/method_rights.h"

namespace normd {

// There is no default, so that the compiler finds a missing method.
Right RightOf(Method method) {
  switch (method) {
    case Method::kNormalize:
    case Method::kNormalizeStream:
    case Method::kModelInfer:
    case Method::kModelStreamInfer:
    case Method::kInfer: return Right::kInfer;
    case Method::kGetModel:
    case Method::kModelReady:
    case Method::kModelMetadata:
    case Method::kModelConfig:
    // About the server; every caller with rights to a model may ask.
    case Method::kGetServerInfo:
    case Method::kServerMetadata: return Right::kDescribe;
    case Method::kServerLive:
    case Method::kServerReady: return Right::kHealth;
    case Method::kListModels:
    case Method::kListSharedMemory:
    case Method::kModelStatistics:
    case Method::kRepositoryIndex:
    case Method::kTraceSetting:
    case Method::kLogSettings: return Right::kObserve;
    case Method::kLoadModel:
    case Method::kUnloadModel:
    case Method::kRepositoryModelLoad:
    case Method::kRepositoryModelUnload:
    case Method::kSharedMemoryStatus:
    case Method::kSharedMemoryRegister:
    case Method::kSharedMemoryUnregister:
    case Method::kCudaSharedMemory: return Right::kAdmin;
  }
  return Right::kAdmin;
}

}  // namespace normd
