// Sends the load run's requests with the client library.

#ifndef NORMD_CLIENT_NORMLOAD_GRPC_SENDER_H_
#define NORMD_CLIENT_NORMLOAD_GRPC_SENDER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "client/caller.h"
#include "client/load/backlog.h"
#include "client/load/sender.h"
#include "client/normload/shared_slots.h"
#include "client/verify/reference_model.h"

namespace normd::load {

// What one item's responses are held against.
struct Expectation {
  std::int64_t version = 0;  // Responses of another version are not checked.
  std::vector<client::ReferenceOutput> outputs;
};

struct GrpcSenderOptions {
  client::Protocol protocol = client::Protocol::kNormd;
  std::int64_t version = 0;
  Duration timeout = client::kNoTimeout;
  // Normalize calls of one connection that gRPC has at once; see Backlog. 0: all.
  int max_sending = 0;
  // The samples of each item's tensors, for streams of several inputs; may be fewer than items.
  std::vector<std::int64_t> stream_samples;
  // By item: where its calls have their tensors. Empty: in their messages. As many slots as calls
  // that the connections' backlogs let go. shared: with the sender.
  std::vector<std::shared_ptr<SharedSlots>> slots;
};

// Thread-safe. An entry of the mix is one Normalize or ModelInfer call, or one NormalizeStream call
// of the same tensor. Verifies on the thread that receives, after the time was taken.
class GrpcSender final : public Sender {
 public:
  // At least one client, each with a connection of its own or one to each server of a fleet;
  // callers go to them in turn. `expectations`: one
  // an item, or empty. `clock` outlives the sender; the sender outlives its calls. InvalidArgument
  // for an item that no message can carry.
  static absl::StatusOr<std::unique_ptr<GrpcSender>> Create(
      std::vector<std::unique_ptr<client::Caller>> clients, const Workload& workload,
      std::vector<Expectation> expectations, const GrpcSenderOptions& options, const Clock& clock);

  void Send(const Outgoing& request, Done done) override;

 private:
  // What goes over the wire for one item: one of the two. Without either, the item has slots.
  struct Prepared {
    std::optional<client::EncodedRequest> request;
    std::shared_ptr<const client::StreamedTensor> stream;  // shared: with the calls in flight.
  };

  GrpcSender(std::vector<std::unique_ptr<client::Caller>> clients, std::vector<Prepared> prepared,
             std::vector<Expectation> expectations, const GrpcSenderOptions& options,
             const Clock& clock);
  static absl::StatusOr<Prepared> Prepare(const Item& item, const GrpcSenderOptions& options);

  Duration TimeoutOf(const Item& item) const;
  // Starts a call that its connection's backlog lets go, and those that follow it.
  void SendFrom(Backlog& backlog, Backlog::Entry entry);
  // Starts the call.
  std::shared_ptr<client::PendingCall> SendCall(const Outgoing& outgoing, Duration timeout,
                                                Done done);
  std::shared_ptr<client::PendingCall> SendStream(
      const Outgoing& outgoing, std::shared_ptr<const client::StreamedTensor> tensor, Done done);
  // A call of the item's whose tensors lie in shared memory.
  std::shared_ptr<client::PendingCall> SendShared(SharedSlots& slots, const Outgoing& outgoing,
                                                  Duration timeout, Done done);
  void SendAndCancel(const Outgoing& outgoing, Done done);
  // Null: the response need not be verified.
  const Expectation* ExpectationFor(const Outgoing& outgoing) const;

  const std::vector<std::unique_ptr<client::Caller>> clients_;
  std::vector<std::unique_ptr<Backlog>> backlogs_;  // One a client, or none; constant.
  const std::vector<Prepared> prepared_;            // By the items' index.
  const std::vector<Expectation> expectations_;
  const GrpcSenderOptions options_;
  const Clock& clock_;
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_GRPC_SENDER_H_
