// The files that secure a client's connections, for any protocol.

#ifndef NORMD_CLIENT_TLS_OPTIONS_H_
#define NORMD_CLIENT_TLS_OPTIONS_H_

#include <string>

namespace normd::client {

// PEM files; empty ones are not used.
struct TlsOptions {
  std::string ca_file;      // Signs the server's certificate; empty: the system's authorities.
  std::string cert_file;    // This side's certificate, with key_file.
  std::string key_file;     // Its key, without a passphrase.
  std::string server_name;  // The name in the server's certificate, if it is not the target's.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_TLS_OPTIONS_H_
