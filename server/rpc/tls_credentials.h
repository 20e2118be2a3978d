// gRPC's TLS, with a certificate that may change while it serves.

#ifndef NORMD_SERVER_RPC_TLS_CREDENTIALS_H_
#define NORMD_SERVER_RPC_TLS_CREDENTIALS_H_

#include <memory>

#include "grpcpp/security/server_credentials.h"
#include "server/tls/certificate_store.h"

namespace normd {

// Each connection begins with the current state of `store`. gRPC speaks TLS 1.2 and 1.3; the accept
// loop enforces a higher minimum. `store` outlives the credentials, and these outlive the gRPC
// server that gets them.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const CertificateStore& store);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_TLS_CREDENTIALS_H_
