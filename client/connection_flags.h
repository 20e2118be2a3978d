// The connection flags, the same for all programs.

#ifndef NORMD_CLIENT_CONNECTION_FLAGS_H_
#define NORMD_CLIENT_CONNECTION_FLAGS_H_

#include <string>

#include "absl/status/status.h"
#include "client/client.h"
#include "flags/flag_set.h"

namespace normd::client {

struct ConnectionFlags {
  bool tls = false;
  TlsOptions files;
  std::string token_file;

  // The flags borrow this object.
  void AddTo(FlagSet& flags);
  // Sets `tls` and `token_file` of `options`: each of the TLS flags turns TLS on.
  void Set(ClientOptions& options) const;
};

// The error of a call, with advice where its words are those of a connection that did not come
// about.
absl::Status WithHint(const absl::Status& status);

}  // namespace normd::client

#endif  // NORMD_CLIENT_CONNECTION_FLAGS_H_
