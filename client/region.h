// Memory of any kind that requests name instead of carrying their tensors.

#ifndef NORMD_CLIENT_REGION_H_
#define NORMD_CLIENT_REGION_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/shape.h"
#include "client/tensor/tensor.h"
#include "kernels/types.h"

namespace normd::client {

// `bytes` rounded up to whole pages: tensors that begin at multiples of this share no page.
std::size_t WholePages(std::size_t bytes);

// The caller and the requests, calls and responses with tensors in it hold the region. Thread-safe
// except for its bytes.
class Region : public std::enable_shared_from_this<Region> {
 public:
  virtual ~Region() = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const std::string& name() const { return name_; }  // The server's name for it.
  std::size_t size() const { return size_; }

  // The tensor of this type and shape at `offset`, for NormalizeRequest::inputs. OutOfRange unless
  // it lies in the region; InvalidArgument as TensorBytes.
  absl::StatusOr<NamedTensor> Input(std::string name, norm::DType dtype, Shape shape,
                                    std::size_t offset = 0) const;
  // Room for an output, for NormalizeRequest::shared_outputs. OutOfRange likewise.
  absl::StatusOr<SharedOutput> Output(std::string name, std::size_t offset,
                                      std::size_t bytes) const;
  // Copies bytes of this process to or from the region. OutOfRange likewise.
  absl::Status Write(std::size_t offset, absl::Span<const std::byte> bytes) const;
  absl::Status Read(std::size_t offset, absl::Span<std::byte> bytes) const;

 protected:
  // `data` is the region's address, which this process need not be able to read.
  Region(std::string name, std::byte* data, std::size_t size)
      : name_(std::move(name)), data_(data), size_(size) {}
  std::byte* address() const { return data_; }

 private:
  virtual absl::Status CopyIn(std::byte* to, absl::Span<const std::byte> from) const = 0;
  virtual absl::Status CopyOut(absl::Span<std::byte> to, const std::byte* from) const = 0;
  // OutOfRange unless the part lies in the region.
  absl::Status Check(std::size_t offset, std::size_t bytes) const;

  const std::string name_;
  std::byte* const data_;
  const std::size_t size_;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_REGION_H_
