// A gRPC service that the server serves.

#ifndef NORMD_SERVER_RPC_SERVED_SERVICE_H_
#define NORMD_SERVER_RPC_SERVED_SERVICE_H_

#include <string>

#include "grpcpp/impl/service_type.h"

namespace normd {

struct ServedService {
  grpc::Service* service = nullptr;  // Outlives the server.
  // "package.Service". Under this name health reports whether the server takes requests, and under
  // NAME/<model> whether a version of the model is loaded.
  std::string name;
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_SERVED_SERVICE_H_
