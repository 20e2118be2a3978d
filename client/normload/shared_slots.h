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
  // Makes the memory, of so many bytes: of the host, or of a device.
  std::function<absl::StatusOr<std::shared_ptr<const client::Region>>(std::size_t)> make;
  std::string flag;       // The one that says where; errors begin with it.
  std::size_t slots = 1;  // Calls at once.
};

// A region with the inputs, once, and a slot of its own for the outputs of each call that may be
// under way: a slot's pages are there once a call has written them. Thread-safe.
class SharedSlots {
 public:
  // `request` has its inputs in memory of this process, which are copied, and has the outputs of
  // these types and shapes. The errors of options.make, and EncodedRequest's.
  static absl::StatusOr<std::unique_ptr<SharedSlots>> Create(
      const client::NormalizeRequest& request, absl::Span<const client::TensorSpec> outputs,
      const SharedSlotsOptions& options);

  // What a call of the first slot asks for.
  const client::NormalizeRequest& first() const { return first_; }

  // A free slot; nullopt when each has its call.
  std::optional<std::size_t> Take();
  // Its message.
  const client::EncodedRequest& request(std::size_t slot) const { return requests_[slot]; }
  // Copies of the outputs of the response to it, which lie in the slot until that is given back.
  // Region::Read's errors, and those of Tensor::Allocate.
  absl::StatusOr<std::vector<client::Tensor>> ReadOutputs(
      std::size_t slot, const client::NormalizeResponse& response) const;
  // The call of the slot has ended. Where it has ended without a response the server may still
  // write there: then the slot is the last to be used again.
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
