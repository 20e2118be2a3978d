// One request, from its description to the description of its response: what is the same for each
// front end.

#ifndef NORMD_SERVER_ACCEPT_EXCHANGE_H_
#define NORMD_SERVER_ACCEPT_EXCHANGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/accept/accept.h"
#include "server/accept/call_context.h"

namespace normd {

// Not thread-safe: Accept is over before the request's `done` calls End.
class Exchange {
 public:
  // Both outlive the exchange.
  Exchange(AcceptEnvironment& environment, CallContext& call)
      : environment_(environment), call_(call) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Counts a whole message, and judges the caller's rights before any of it is read.
  absl::Status Receive(std::int64_t message_bytes);
  // Takes this many more bytes of the budgets for what the front end reads, inflates or writes. Of
  // what it held before Accept, the request's own lease counts the inputs.
  absl::Status Hold(std::int64_t bytes);
  void LetHeldGo() { held_ = Admission::Lease(); }

  // Judges and admits a request. The caller sets its `done` and pushes it; its data lies in the
  // memory of the description and of the exchange. Errors are those of AcceptRequest.
  absl::StatusOr<std::unique_ptr<Request>> Accept(RequestDescription&& description);
  // Has `encode` write the response for the results, which takes the outputs' memory and returns
  // the response's length, and records the stages; releases the regions in any case. Returns the
  // request's final status. Never throws.
  absl::Status End(Completion& completion,
                   absl::FunctionRef<absl::StatusOr<std::int64_t>(ResponseDescription&&)> encode);

  // Called instead of End for a request that the queue did not take: releases the regions and its
  // share of the budgets.
  void LetGo() {
    accepted_.in_regions = RegionTensors();
    accepted_.lease = Admission::Lease();
  }

  std::uint64_t request_id() const { return request_id_; }  // 0 before it is accepted.
  const std::string& id() const { return id_; }             // The client's own; may be empty.
  // For a request that was refused before there was a description.
  void set_id(std::string id) { id_ = std::move(id); }

 protected:
  AcceptEnvironment& environment_;
  CallContext& call_;

 private:
  absl::Status Answer(
      Completion& completion,
      absl::FunctionRef<absl::StatusOr<std::int64_t>(ResponseDescription&&)> encode);

  std::uint64_t request_id_ = 0;
  std::string id_;
  Admission::Lease held_;
  std::shared_ptr<void> decoded_;  // As RequestDescription::owner.
  AcceptedRequest accepted_;
};

}  // namespace normd

#endif  // NORMD_SERVER_ACCEPT_EXCHANGE_H_
