// Memory that this process shares with a server on the same machine (docs/shared_memory.md).

#ifndef NORMD_CLIENT_SHARED_REGION_H_
#define NORMD_CLIENT_SHARED_REGION_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/descriptor.h"
#include "client/region.h"

namespace normd::client {

// Zeroed memory of this process that the server has mapped too: requests of either protocol name
// their tensors in it, and carry none. The caller and the requests, calls and responses with
// tensors in it hold the region. The server releases it with the last of them, and when the process
// ends in any way. Thread-safe except for its bytes.
class SharedRegion final : public Region {
 public:
  // Makes `bytes` of memory, seals it against shrinking and passes it to the server at `address`,
  // its --shared_memory_listen (unix:///path). `token` belongs to an identity of the server's
  // policy, and only that identity's calls find the region; empty: none. Blocks until the server
  // replies. InvalidArgument for an invalid address and for 0 bytes; Unavailable when nobody
  // listens there; else the server's error.
  static absl::StatusOr<std::shared_ptr<SharedRegion>> Create(const std::string& address,
                                                              std::size_t bytes,
                                                              absl::string_view token = "");
  ~SharedRegion() override;

  std::byte* data() const { return address(); }

 private:
  SharedRegion(Descriptor connection, std::string name, std::byte* data, std::size_t size);
  absl::Status CopyIn(std::byte* to, absl::Span<const std::byte> from) const override;
  absl::Status CopyOut(absl::Span<std::byte> to, const std::byte* from) const override;

  const Descriptor connection_;  // The region lives as long as this.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_SHARED_REGION_H_
