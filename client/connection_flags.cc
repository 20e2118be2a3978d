#include "client/connection_flags.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace normd::client {

void ConnectionFlags::AddTo(FlagSet& flags) {
  flags.Add("tls", &tls, "", "Uses TLS; each of the next four implies it.");
  flags.Add("tls_ca", &files.ca_file, "FILE",
            "Authorities (PEM) that may sign the server's certificate.");
  flags.Add("tls_cert", &files.cert_file, "FILE",
            "This client's certificate (PEM), for a server that asks for one.");
  flags.Add("tls_key", &files.key_file, "FILE", "Its key (PEM), without a passphrase.");
  flags.Add("tls_server_name", &files.server_name, "NAME",
            "The name in the server's certificate, if it is not that of --server.");
  flags.Add("token_file", &token_file, "FILE",
            "Token that identifies the caller; it is sent only over TLS or to this machine.");
}

void ConnectionFlags::Set(ClientOptions& options) const {
  if (tls || !files.ca_file.empty() || !files.cert_file.empty() || !files.key_file.empty() ||
      !files.server_name.empty()) {
    options.tls = files;
  }
  options.token_file = token_file;
}

// gRPC distinguishes the cases in its message alone.
absl::Status WithHint(const absl::Status& status) {
  constexpr const char* kUntrusted =
      "its certificate is not trusted: --tls_ca names the authorities that may sign it";
  constexpr const char* kOtherPort =
      "is it the gRPC port (8001), and not that of HTTP or the metrics?";
  constexpr std::pair<const char*, const char*> kHints[] = {
      {"wrong version number", "the server seems to speak no TLS: try without --tls"},
      // normd's words for a connection that is to be in the clear, and a server's that distrusts
      // it.
      {"alert handshake failure",
       "if the server speaks no TLS, try without --tls; if it asks for certificates, add "
       "--tls_cert and --tls_key"},
      {"certificate verify failed", kUntrusted},
      // The authority has the right name and another key, of an elliptic curve or RSA.
      {"asn1 encoding routines", kUntrusted},
      {"rsa routines", kUntrusted},
      {"Socket closed",
       "if the server speaks TLS, add --tls; if it asks for certificates, "
       "--tls_cert and --tls_key"},
      {"Failed parsing HTTP/2", kOtherPort},
      {"http1.x server", kOtherPort},
      {"Received http2 header with status", "something else than normd answers there"},
      {"Connection refused", "does normd run, and listen there?"}};
  for (const auto& [message, hint] : kHints) {
    if (!absl::StrContains(status.message(), message)) continue;
    return absl::Status(status.code(), absl::StrCat(status.message(), "; ", hint));
  }
  return status;
}

}  // namespace normd::client
