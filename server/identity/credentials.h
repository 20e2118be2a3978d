// The unjudged credentials of a caller.

#ifndef NORMD_SERVER_IDENTITY_CREDENTIALS_H_
#define NORMD_SERVER_IDENTITY_CREDENTIALS_H_

#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"

namespace normd {

// Borrows; only read while it is judged. A transport fills in the parts that it has verified, and
// leaves out the rest.
struct PeerCredentials {
  // The subject alternative names of a client certificate that the transport has verified.
  absl::InlinedVector<absl::string_view, 2> uris;
  absl::InlinedVector<absl::string_view, 2> dns_names;
  // The value of `authorization`, as sent: "Bearer ...".
  std::optional<absl::string_view> authorization;
  // The caller is a process on this machine of the server's own user, or of root: the system
  // reports this about the other end of a unix socket, where no others are let in.
  bool own_user = false;
};

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_CREDENTIALS_H_
