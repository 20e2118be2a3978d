// The paths of the Open Inference Protocol over HTTP: a pure function.

#ifndef NORMD_SERVER_REST_ROUTES_H_
#define NORMD_SERVER_REST_ROUTES_H_

#include <string>

#include "absl/strings/string_view.h"
#include "server/rest/rest_head.h"

namespace normd {

enum class RestMethod {
  kServerLive,
  kServerReady,
  kServerMetadata,
  kModelReady,
  kModelMetadata,
  kModelConfig,
  kModelStatistics,
  kInfer,
  kRepositoryIndex,
  kLoad,
  kUnload,
  kSystemStatus,
  kSystemRegister,
  kSystemUnregister,
  kCudaStatus,
  kCudaRegister,
  kCudaUnregister,
  kTraceSetting,
  kLogSettings,
};

struct Route {
  RestMethod method = RestMethod::kServerLive;
  // Decoded; empty if the path names none.
  std::string model;
  std::string version;
  std::string region;
};

// Finds the route of a request, whose query is ignored. HEAD is served as GET. Refuses with 400 a
// target that cannot be read, with 404 a path that does not exist, with 405 another verb than the
// path's, and OPTIONS of a path that exists with 204.
RestRefusal FindRoute(absl::string_view verb, absl::string_view target, Route& route);

}  // namespace normd

#endif  // NORMD_SERVER_REST_ROUTES_H_
