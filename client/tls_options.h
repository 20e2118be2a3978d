// The files that secure a client's connections, whatever protocol it speaks over them.

#ifndef NORMD_CLIENT_TLS_OPTIONS_H_
#define NORMD_CLIENT_TLS_OPTIONS_H_

#include <string>

namespace normd::client {

// PEM files; those that are empty are not used.
struct TlsOptions {
  std::string ca_file;      // Who may sign the server's certificate; without it the system's.
  std::string cert_file;    // What this side shows, with key_file.
  std::string key_file;     // Its key, without a passphrase.
  std::string server_name;  // In the server's certificate, if it is not the target's.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_TLS_OPTIONS_H_
