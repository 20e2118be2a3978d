// The security of a client's connections, from the files that its options name.

#ifndef NORMD_CLIENT_CHANNEL_SECURITY_H_
#define NORMD_CLIENT_CHANNEL_SECURITY_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tls_options.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/client_interceptor.h"

namespace normd::client {

// No TLS if `tls` is empty. NotFound for a file that cannot be read, InvalidArgument for
// files without PEM, an encrypted key, a certificate without its key or a key without its
// certificate; both name the option.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const std::optional<TlsOptions>& tls);

// The token in a file, which holds one word. NotFound when it cannot be read, InvalidArgument when
// it holds anything else; both name the option, and neither shows the contents.
absl::StatusOr<std::string> ReadToken(const std::string& path);

// Whether `target` is on this machine, so that a token may go there without TLS.
bool IsLocalTarget(const std::string& target);

using Interceptors =
    std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>;

// Sends "authorization: Bearer `token`" with each call of a channel.
Interceptors SendToken(const std::string& token);

}  // namespace normd::client

#endif  // NORMD_CLIENT_CHANNEL_SECURITY_H_
