// The flags by which a program says how to connect, the same for all of them.

#ifndef NORMD_CLIENT_CONNECTION_FLAGS_H_
#define NORMD_CLIENT_CONNECTION_FLAGS_H_

#include <string>

#include "client/client.h"
#include "flags/flag_set.h"

namespace normd::client {

struct ConnectionFlags {
  bool tls = false;
  TlsOptions files;
  std::string token_file;

  // Borrows this.
  void AddTo(FlagSet& flags);
  // Sets `tls` and `token_file` of `options`: each of the flags for TLS implies the rest.
  void Set(ClientOptions& options) const;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_CONNECTION_FLAGS_H_
