// The credentials of the gRPC server, which outlive it. A call with more than 256 entries of
// metadata gets INVALID_ARGUMENT before gRPC waits for its message.

#ifndef NORMD_SERVER_RPC_CREDENTIALS_H_
#define NORMD_SERVER_RPC_CREDENTIALS_H_

#include <memory>

#include "grpcpp/security/server_credentials.h"
#include "server/tls/certificate_store.h"

namespace normd {

std::shared_ptr<grpc::ServerCredentials> MakePlainCredentials();

// Each connection begins with the current state of `store`. gRPC speaks TLS 1.2 and 1.3; the accept
// loop enforces a higher minimum. `store` outlives the credentials.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const CertificateStore& store);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_CREDENTIALS_H_
