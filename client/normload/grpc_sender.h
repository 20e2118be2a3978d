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
#include "client/normload/expectation.h"
#include "client/normload/shared_slots.h"

namespace normd::load {

// What an item's calls of either kind say beside their tensors, without a time limit.
void SetFields(const Item& item, std::int64_t version, client::CallFields& fields);
// The call of an item, likewise.
client::NormalizeRequest RequestFor(const Item& item, client::Protocol protocol,
                                    std::int64_t version);

struct GrpcSenderOptions {
  client::Protocol protocol = client::Protocol::kNormd;
  std::int64_t version = 0;
  Duration timeout = client::kNoTimeout;
  // The limit of Normalize calls that one connection has in gRPC; see Backlog. 0: none.
  int max_sending = 0;
  // The samples of each item's tensors, for streams of several inputs; there may be fewer entries
  // than items.
  std::vector<std::int64_t> stream_samples;
  // By item: the memory of its calls' tensors. Empty: they travel in messages. There are as many
  // slots as calls that the connections' backlogs admit. shared: with the sender.
  std::vector<std::shared_ptr<SharedSlots>> slots;
};

// Thread-safe. An entry of the mix is one Normalize or ModelInfer call, or one NormalizeStream call
// of the same tensor. Verifies on the thread that receives, after the time is taken.
class GrpcSender final : public Sender {
 public:
  // Takes at least one client, each with a connection of its own or one to each server of a fleet;
  // callers use them in turn. `expectations`: one per item, or empty. `clock` outlives the sender;
  // the sender outlives its calls. InvalidArgument for an item that no message can carry.
  static absl::StatusOr<std::unique_ptr<GrpcSender>> Create(
      std::vector<std::unique_ptr<client::Caller>> clients, const Workload& workload,
      std::vector<Expectation> expectations, const GrpcSenderOptions& options, const Clock& clock);

  void Send(const Outgoing& request, Done done) override;

 private:
  // The encoded form of one item: one of the two, or none if the item has slots.
  struct Prepared {
    std::optional<client::EncodedRequest> request;
    std::shared_ptr<const client::StreamedTensor> stream;  // shared: with the calls in flight.
  };

  GrpcSender(std::vector<std::unique_ptr<client::Caller>> clients, std::vector<Prepared> prepared,
             std::vector<Expectation> expectations, const GrpcSenderOptions& options,
             const Clock& clock);
  static absl::StatusOr<Prepared> Prepare(const Item& item, const GrpcSenderOptions& options);

  // Starts a call that its connection's backlog admits, and the calls that follow it.
  void SendFrom(Backlog& backlog, Backlog::Entry entry);
  // Starts the call.
  std::shared_ptr<client::PendingCall> SendCall(const Outgoing& outgoing, Duration timeout,
                                                Done done);
  std::shared_ptr<client::PendingCall> SendStream(
      const Outgoing& outgoing, std::shared_ptr<const client::StreamedTensor> tensor, Done done);
  // Starts a call of the item whose tensors lie in shared memory.
  std::shared_ptr<client::PendingCall> SendShared(SharedSlots& slots, const Outgoing& outgoing,
                                                  Duration timeout, Done done);
  void SendAndCancel(const Outgoing& outgoing, Done done);

  const std::vector<std::unique_ptr<client::Caller>> clients_;
  std::vector<std::unique_ptr<Backlog>> backlogs_;  // One per client, or none; constant.
  const std::vector<Prepared> prepared_;            // By the items' index.
  const std::vector<Expectation> expectations_;
  const GrpcSenderOptions options_;
  const Clock& clock_;
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_GRPC_SENDER_H_
