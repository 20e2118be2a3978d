// Memory that this process shares with a server on the same machine (docs/shared_memory.md).

#ifndef NORMD_CLIENT_SHARED_REGION_H_
#define NORMD_CLIENT_SHARED_REGION_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/descriptor.h"
#include "base/shape.h"
#include "client/tensor/tensor.h"
#include "kernels/norm.h"

namespace normd::client {

// So many bytes in whole pages: where tensors of a region begin with these, no two share one.
std::size_t WholePages(std::size_t bytes);

// Zeroed memory of this process that the server has mapped too: requests of either protocol name
// their tensors in it, and carry none. Its holders are the caller and the requests, calls and
// responses with tensors in it. With the last of them the server lets it go, and so it does when
// the process ends in whatever way. Thread-safe but for its bytes.
class SharedRegion : public std::enable_shared_from_this<SharedRegion> {
 public:
  // Makes `bytes`, seals them against shrinking and hands them over at `address`, the server's
  // --shared_memory_listen (unix:///path). `token` is that of an identity of the server's policy,
  // whose calls alone find the region; empty: none. Blocks until the server replies.
  // InvalidArgument for an address that is no such, and for no bytes; Unavailable when nobody
  // listens there; else the server's error.
  static absl::StatusOr<std::shared_ptr<SharedRegion>> Create(const std::string& address,
                                                              std::size_t bytes,
                                                              absl::string_view token = "");
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  const std::string& name() const { return name_; }  // As the server chose it.
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  // The tensor of this type and shape at `offset`, for NormalizeRequest::inputs. OutOfRange unless
  // it lies in the region; InvalidArgument as TensorBytes.
  absl::StatusOr<NamedTensor> Input(std::string name, norm::DType dtype, Shape shape,
                                    std::size_t offset = 0) const;
  // Room for an output, for NormalizeRequest::shared_outputs. OutOfRange likewise.
  absl::StatusOr<SharedOutput> Output(std::string name, std::size_t offset,
                                      std::size_t bytes) const;

 private:
  SharedRegion(Descriptor connection, std::string name, std::byte* data, std::size_t size);
  // OutOfRange unless such a part lies in the region.
  absl::Status Check(std::size_t offset, std::size_t bytes) const;

  const Descriptor connection_;  // The region lives as long as this.
  const std::string name_;
  std::byte* const data_;
  const std::size_t size_;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_SHARED_REGION_H_
