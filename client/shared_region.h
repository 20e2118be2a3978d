// Memory that this process shares with a server on the same machine (docs/shared_memory.md).

#ifndef NORMD_CLIENT_SHARED_REGION_H_
#define NORMD_CLIENT_SHARED_REGION_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/descriptor.h"

namespace normd::client {

// Zeroed memory of this process that the server has mapped too: requests of the Open Inference
// Protocol name their tensors in it (shared_memory_region: name()). The server lets it go when this
// goes, or when the process ends in whatever way. Thread-safe but for its bytes.
class SharedRegion {
 public:
  // Makes `bytes`, seals them against shrinking and hands them over at `address`, the server's
  // --shared_memory_listen (unix:///path). `token` is that of an identity of the server's policy,
  // whose calls alone find the region; empty: none. Blocks until the server replies.
  // InvalidArgument for an address that is no such; Unavailable when nobody listens there; else the
  // server's error.
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Create(const std::string& address,
                                                              std::size_t bytes,
                                                              absl::string_view token = "");
  // What requests still write to it is lost.
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  const std::string& name() const { return name_; }  // As the server chose it.
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  SharedRegion(Descriptor connection, std::string name, std::byte* data, std::size_t size);

  const Descriptor connection_;  // The region lives as long as this.
  const std::string name_;
  std::byte* const data_;
  const std::size_t size_;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_SHARED_REGION_H_
