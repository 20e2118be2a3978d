// All current callers.

#ifndef NORMD_SERVER_CALLERS_CALLERS_H_
#define NORMD_SERVER_CALLERS_CALLERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "server/callers/caller.h"
#include "server/callers/weak_table.h"

namespace normd {

// The peer of a connection: the address without the port; for IPv6 the network of 64 bits, because
// one host can take any address in it. Connections have gRPC's names: "ipv4:192.0.2.1:4711",
// "ipv6:%5B2001:db8::1%5D:4711" or "unix:".
std::string PeerNameOf(absl::string_view connection);

// The accept loop holds each connection's caller while the connection lives, and each call holds
// its own, so a call finds it with one look-up and without an allocation. Thread-safe; outlives the
// callers that it returns. Everything but the counts may throw std::bad_alloc.
class Callers {
 public:
  // Begins a connection with new counts: those of an earlier one, which may still have calls
  // inside, had the same name.
  std::shared_ptr<Caller> Begin(absl::string_view connection, ConnectionOrigin origin = {});
  // Whether a connection of that name, with another origin, is in use.
  bool IsOtherwise(absl::string_view connection, ConnectionOrigin origin);
  // The caller of a call on that connection. Null for an empty name.
  std::shared_ptr<Caller> Find(absl::string_view connection);

  // The peer of that name, made if it is not in use; may throw std::bad_alloc.
  std::shared_ptr<Peer> FindPeer(const std::string& name);

  // The numbers in use.
  std::size_t connections() const { return connections_.size(); }
  std::size_t peers() const { return peers_.size(); }

 private:
  std::unique_ptr<Caller> Make(absl::string_view connection, ConnectionOrigin origin);

  std::atomic<std::uint64_t> next_peer_id_{1};
  WeakTable<Peer> peers_;
  WeakTable<Caller> connections_;  // Their destructors use the peers.
};

}  // namespace normd

#endif  // NORMD_SERVER_CALLERS_CALLERS_H_
