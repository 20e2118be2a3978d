// Connections without TLS, and the metadata limit for all calls.

#ifndef NORMD_SERVER_RPC_PLAIN_CREDENTIALS_H_
#define NORMD_SERVER_RPC_PLAIN_CREDENTIALS_H_

#include <grpc/grpc_security.h>

#include <cstddef>
#include <memory>

#include "grpcpp/security/server_credentials.h"

namespace normd {

// gRPC takes 160 bytes for an entry of metadata, which compressed is one byte on the wire, and
// holds them until the call's message has come. Proxies pass 100.
inline constexpr std::size_t kMaxMetadataEntries = 256;

// A call with more entries of metadata gets INVALID_ARGUMENT before gRPC waits for its message.
void LimitMetadataEntries(grpc_server_credentials* credentials);

// Credentials with that limit. They outlive the gRPC server that gets them.
std::shared_ptr<grpc::ServerCredentials> MakePlainCredentials();

}  // namespace normd

#endif  // NORMD_SERVER_RPC_PLAIN_CREDENTIALS_H_
