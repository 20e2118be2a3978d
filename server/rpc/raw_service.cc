#include "server/rpc/raw_service.h"

#include "absl/strings/str_cat.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"

namespace normd {

using grpc::internal::RpcMethod;

void RawService::AddUnary(absl::string_view method,
                          std::function<Unary*(Context*, const Bytes*, Bytes*)> handler) {
  Add(method, RpcMethod::NORMAL_RPC,
      new grpc::internal::CallbackUnaryHandler<Bytes, Bytes>(std::move(handler)));
}

void RawService::AddStream(absl::string_view method, std::function<Stream*(Context*)> handler) {
  Add(method, RpcMethod::BIDI_STREAMING,
      new grpc::internal::CallbackBidiHandler<Bytes, Bytes>(std::move(handler)));
}

// As generated code does; gRPC owns the handler.
void RawService::Add(absl::string_view method, RpcMethod::RpcType type,
                     grpc::internal::MethodHandler* handler) {
  const auto index = static_cast<int>(paths_.size());
  const std::string& path = paths_.emplace_back(absl::StrCat("/", name_, "/", method));
  AddMethod(new grpc::internal::RpcServiceMethod(path.c_str(), type, nullptr));
  MarkMethodRawCallback(index, handler);
}

}  // namespace normd
