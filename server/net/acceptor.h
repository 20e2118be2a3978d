// Accepts connections from listening sockets.

#ifndef NORMD_SERVER_NET_ACCEPTOR_H_
#define NORMD_SERVER_NET_ACCEPTOR_H_

#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "base/descriptor.h"
#include "server/callers/callers.h"
#include "server/net/listener.h"
#include "server/net/peer_address.h"

namespace normd {

// Used by one thread, which waits for the sockets' events with epoll.
class Acceptor {
 public:
  using Admit = std::function<void(Descriptor socket, const PeerAddress&, ConnectionOrigin)>;

  // Registers the listening sockets at `epoll`, which outlives it: their events have the ids from
  // `first_id` to end_id().
  Acceptor(Listener listener, int epoll, std::uint64_t first_id);
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  std::uint64_t end_id() const { return first_id_ + listener_.sockets.size(); }

  // Passes the waiting connections of this event's socket to `admit`, up to 64, so that other
  // events have their turn. Returns 0, or the system's error when it has no resources for a
  // connection. One is then refused with a spare descriptor, or else no more are accepted for 100
  // ms.
  int Accept(std::uint64_t id, const Admit& admit);
  // Ends such a pause once it is over.
  void Resume(TimePoint now);
  bool paused() const { return resume_at_ != kNever; }
  // From here on new connections are reset.
  void Stop();

 private:
  int OnFailure(const Descriptor& listener, int error);
  void SetListening(bool on);

  const Listener listener_;
  const int epoll_;
  const std::uint64_t first_id_;
  Descriptor spare_;
  TimePoint resume_at_ = kNever;
};

}  // namespace normd

#endif  // NORMD_SERVER_NET_ACCEPTOR_H_
