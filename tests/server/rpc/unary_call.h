// One Normalize call that is waited for, and what its trailing metadata says.

#ifndef NORMD_TESTS_SERVER_RPC_UNARY_CALL_H_
#define NORMD_TESTS_SERVER_RPC_UNARY_CALL_H_

#include <string>

#include "tests/server/rpc/test_server.h"

namespace normd::testing {

// `response` may be null.
inline grpc::Status Normalize(TestServer& server, const v1::NormalizeRequest& request,
                              v1::NormalizeResponse* response = nullptr) {
  grpc::ClientContext context;
  v1::NormalizeResponse unused;
  return server.stub().Normalize(&context, request, response != nullptr ? response : &unused);
}

// The pushback of the trailing metadata; "" if there is none.
inline std::string Pushback(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("grpc-retry-pushback-ms");
  return found == trailers.end() ? "" : std::string(found->second.data(), found->second.size());
}

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_UNARY_CALL_H_
