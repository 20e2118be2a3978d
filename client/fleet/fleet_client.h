// A client of several servers with the same models: it balances calls, checks the servers' health,
// and retries on another server.

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

// Thread-safe. It has a thread for health checks, and one that resolves names.
class FleetClient final : public Caller {
 public:
  // `servers`: as for ParseServers. Resolves the names and begins to connect. The errors are those
  // of ParseServers, ResolveServers, CheckRetryPolicy and Client::Create.
  static absl::StatusOr<std::unique_ptr<FleetClient>> Create(const std::string& servers,
                                                             const FleetOptions& options = {});
  // Calls in flight continue, without further retries.
  ~FleetClient() override;

  // Waits until a server reports that it serves. False when none does, or after the timeout; calls
  // then say why.
  bool Connect(Duration timeout);

  // As for one server; `timeout` covers all attempts. An error is the last attempt's with the
  // number of attempts; UNAVAILABLE when no server is available says why for each.
  std::shared_ptr<PendingCall> NormalizeAsync(const EncodedRequest& request, Duration timeout,
                                              Done done) override;
  // A stream has one attempt.
  std::shared_ptr<PendingCall> NormalizeStreamAsync(
      std::shared_ptr<const StreamedTensor> tensor,
      absl::AnyInvocable<void(absl::Span<const std::byte>)> on_bytes, StreamDone done) override;

  // One of the servers, for calls to a single server: the next that serves, else the first. Lives
  // as long as the result.
  std::shared_ptr<Client> AnyServer();

  FleetCounts counts() const;

 private:
  explicit FleetClient(std::shared_ptr<FleetState> state);

  std::shared_ptr<FleetState> state_;  // shared: with the calls and checks in flight.
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLEET_FLEET_CLIENT_H_
