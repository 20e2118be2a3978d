// Memory that the calls of one kind of request share with the server.

#ifndef NORMD_CLIENT_NORMLOAD_SHARED_SLOTS_H_
#define NORMD_CLIENT_NORMLOAD_SHARED_SLOTS_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "client/region.h"
#include "client/request.h"
#include "client/response.h"
#include "client/tensor/tensor.h"

namespace normd::load {

struct SharedSlotsOptions {
  // Makes `bytes` of memory, on the host or on a device.
  std::function<absl::StatusOr<std::shared_ptr<const client::Region>>(std::size_t)> make;
  std::string flag;       // The flag that names the place; errors begin with it.
  std::size_t slots = 1;  // Concurrent calls.
};

// A region with one copy of the inputs, and a slot for the outputs of each concurrent call. A
// slot's pages are allocated when a call writes them. Thread-safe.
class SharedSlots {
 public:
  // `request` has its inputs in memory of this process, which are copied; its outputs have these
  // types and shapes. The errors of options.make, and EncodedRequest's.
  static absl::StatusOr<std::unique_ptr<SharedSlots>> Create(
      const client::NormalizeRequest& request, absl::Span<const client::TensorSpec> outputs,
      const SharedSlotsOptions& options);

  // The request of a call with the first slot.
  const client::NormalizeRequest& first() const { return first_; }

  // Takes a free slot; nullopt when each has a call.
  std::optional<std::size_t> Take();
  // The slot's message.
  const client::EncodedRequest& request(std::size_t slot) const { return requests_[slot]; }
  // Copies the outputs of its response, which lie in the slot until it is given back. Errors:
  // Region::Read's and Tensor::Allocate's.
  absl::StatusOr<std::vector<client::Tensor>> ReadOutputs(
      std::size_t slot, const client::NormalizeResponse& response) const;
  // Call when the slot's call has ended. Without a response the server may still write there: the
  // slot is then the last to be reused.
  void Give(std::size_t slot, bool responded);

 private:
  SharedSlots(std::shared_ptr<const client::Region> region, client::NormalizeRequest first,
              std::vector<client::EncodedRequest> requests);

  const std::shared_ptr<const client::Region> region_;  // shared: with the requests.
  const client::NormalizeRequest first_;
  const std::vector<client::EncodedRequest> requests_;  // By slot.
  Mutex mutex_;
  std::deque<std::size_t> free_ ABSL_GUARDED_BY(mutex_);  // The next one first.
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_SHARED_SLOTS_H_
