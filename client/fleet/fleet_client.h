// A client of several servers that serve the same models: it balances calls, asks after health, and
// tries again elsewhere.

#ifndef NORMD_CLIENT_FLEET_FLEET_CLIENT_H_
#define NORMD_CLIENT_FLEET_FLEET_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/caller.h"
#include "client/client.h"
#include "client/fleet/fleet_options.h"

namespace normd::client {

class FleetState;

// Thread-safe. It has a thread that asks after the servers' health, and one that resolves names.
class FleetClient final : public Caller {
 public:
  // `servers`: as for ParseServers. Resolves the names and begins to connect. The errors are those
  // of ParseServers, ResolveServers, CheckRetryPolicy and Client::Create.
  static absl::StatusOr<std::unique_ptr<FleetClient>> Create(const std::string& servers,
                                                             const FleetOptions& options = {});
  // Calls in flight go on to their end, without further retries.
  ~FleetClient() override;

  // Waits until a server says that it serves. False when none does, or the time is over; calls then
  // tell why.
  bool Connect(Duration timeout);

  // As one server's; `timeout` is for all attempts together. An error is the last attempt's, and
  // says how many there were; UNAVAILABLE where no server can be asked says why for each.
  std::shared_ptr<PendingCall> NormalizeAsync(const EncodedRequest& request, Duration timeout,
                                              Done done) override;
  // A stream has one attempt.
  std::shared_ptr<PendingCall> NormalizeStreamAsync(
      std::shared_ptr<const StreamedTensor> tensor,
      absl::AnyInvocable<void(absl::Span<const std::byte>)> on_bytes, StreamDone done) override;

  // One of the servers, for calls that ask one: the next that serves, else the first. Lives as long
  // as the result.
  std::shared_ptr<Client> AnyServer();

  FleetCounts counts() const;

 private:
  explicit FleetClient(std::shared_ptr<FleetState> state);

  std::shared_ptr<FleetState> state_;  // shared: with the calls and checks in flight.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLEET_FLEET_CLIENT_H_
