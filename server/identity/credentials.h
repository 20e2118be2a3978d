// What is known of whoever calls, before anybody has judged it.

#ifndef NORMD_SERVER_IDENTITY_CREDENTIALS_H_
#define NORMD_SERVER_IDENTITY_CREDENTIALS_H_

#include <optional>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"

namespace normd {

// Borrows; only read while it is judged. A transport fills in what it has verified, and leaves out
// the rest.
struct PeerCredentials {
  // The subject alternative names of a client certificate that the transport has verified.
  absl::InlinedVector<absl::string_view, 2> uris;
  absl::InlinedVector<absl::string_view, 2> dns_names;
  // The value of `authorization`, as the call brought it: "Bearer ...".
  std::optional<absl::string_view> authorization;
  // A process on this machine of the server's own user, or of root: the system says so of the other
  // end of a unix socket, and nobody else is let in there.
  bool own_user = false;
};

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_CREDENTIALS_H_
