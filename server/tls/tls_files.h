// The files that a TLS server needs, read and checked before use.

#ifndef NORMD_SERVER_TLS_TLS_FILES_H_
#define NORMD_SERVER_TLS_TLS_FILES_H_

#include <array>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file.h"

namespace normd {

// Paths of PEM files.
struct TlsFiles {
  std::string certificate;  // The server's own first, then those that lead to its authority.
  std::string key;          // The key of the server's own certificate, without a passphrase.
  std::string client_ca;    // Authorities of clients' certificates; empty: none are asked for.
};

// The files' contents, consistent and valid at one moment.
struct TlsMaterial {
  std::string certificate;
  std::string key;
  std::string client_ca;
  absl::Time not_after;  // When the first certificate of the chain expires.

  bool operator==(const TlsMaterial&) const = default;
};

// Identifies a state of the files without reading them; zeros for a missing one.
using TlsFileStamps = std::array<FileState, 3>;
TlsFileStamps StampsOf(const TlsFiles& files);

// Reads the files and checks them at the time `now`. Refuses: a file that cannot be read, is not
// regular or is larger than 1 MiB; a key that others may read or write, or its group may write;
// truncated or damaged PEM; an encrypted key, and one that is not the first certificate's; a
// certificate that is not valid yet or has expired, has a weak key, or is not for servers;
// authorities of which none is valid now. Files are named by their flags. FailedPrecondition.
// Blocks on reading. Thread-safe.
absl::StatusOr<TlsMaterial> LoadTlsMaterial(const TlsFiles& files, absl::Time now);

}  // namespace normd

#endif  // NORMD_SERVER_TLS_TLS_FILES_H_
