#include "client/connection_flags.h"

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

}  // namespace normd::client
