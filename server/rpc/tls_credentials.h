// TLS as gRPC speaks it, with a certificate that may change while it serves.

#ifndef NORMD_SERVER_RPC_TLS_CREDENTIALS_H_
#define NORMD_SERVER_RPC_TLS_CREDENTIALS_H_

#include <memory>

#include "grpcpp/security/server_credentials.h"
#include "server/tls/certificate_store.h"

namespace normd {

// Each connection begins with what `store` holds at that moment. gRPC speaks TLS 1.2 and 1.3; a
// higher minimum is the accept loop's to enforce. `store` outlives the credentials, and these the
// gRPC server that they are given to.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(const CertificateStore& store);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_TLS_CREDENTIALS_H_
