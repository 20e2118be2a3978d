// Connections without TLS, and what holds for the calls of all.

#ifndef NORMD_SERVER_RPC_PLAIN_CREDENTIALS_H_
#define NORMD_SERVER_RPC_PLAIN_CREDENTIALS_H_

#include <grpc/grpc_security.h>

#include <cstddef>
#include <memory>

#include "grpcpp/security/server_credentials.h"

namespace normd {

// gRPC takes 160 bytes for an entry of metadata, which compressed is one byte on the wire, and
// holds them until the call's message has come. Proxies let 100 through.
inline constexpr std::size_t kMaxMetadataEntries = 256;

// A call with more entries of metadata gets INVALID_ARGUMENT before gRPC waits for its message.
void LimitMetadataEntries(grpc_server_credentials* credentials);

// With that limit. They outlive the gRPC server that they are given to.
std::shared_ptr<grpc::ServerCredentials> MakePlainCredentials();

}  // namespace normd

#endif  // NORMD_SERVER_RPC_PLAIN_CREDENTIALS_H_
