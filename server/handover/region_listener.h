// Receives memory that clients pass as descriptors, for as long as their connections last.
//
// A client connects to a unix socket and sends a packet with a descriptor (wire/region_message.h);
// the reply names the region by 128 random bits, which only this client knows. A region is
// unregistered when its client asks for it or when the connection ends for any reason; requests
// that use it keep it until they end.

#ifndef NORMD_SERVER_HANDOVER_REGION_LISTENER_H_
#define NORMD_SERVER_HANDOVER_REGION_LISTENER_H_

#include <poll.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/descriptor.h"
#include "server/handover/descriptor_closer.h"
#include "server/handover/handover_limits.h"
#include "server/handover/packet_listener.h"
#include "server/metrics/handles.h"
#include "server/regions/region_registry.h"
#include "wire/region_message.h"

namespace normd {

struct RegionListenerOptions {
  std::string address;  // unix:///path
  HandoverLimits limits = {};
};

// The owner of the regions that a client with this `authorization` registers, or its refusal.
using OwnerOf = absl::AnyInvocable<absl::StatusOr<std::string>(absl::string_view authorization)>;

// Accepts connections of the server's own user, and of root, alone. It has one thread, which no
// client can block: packets come whole, a client that does not take its reply is closed, and
// another thread closes passed descriptors that are not memory. While that thread has more than
// kMaxUnclosed to close, no client is served. The reply to a registration waits until the region's
// pages are locked (LockWait); until then no further packet of that connection is read.
//
// A new connection is always accepted. At the limit of connections without a region, the one that
// gives way is the longest silent one of the process with most of them.
class RegionListener {
 public:
  // `registry` and `metrics` outlive it. Unavailable when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<RegionListener>> Start(RegionListenerOptions options,
                                                               RegionRegistry& registry,
                                                               RegionMetrics& metrics,
                                                               OwnerOf owner_of);
  // Ends all connections, and with them their regions.
  ~RegionListener();
  RegionListener(const RegionListener&) = delete;
  RegionListener& operator=(const RegionListener&) = delete;

 private:
  struct Connection {
    Descriptor socket;
    pid_t process = 0;            // The connected process.
    std::uint64_t last_sign = 0;  // When it connected or sent, in order.
    std::vector<std::pair<std::string, std::string>> regions;  // Owner, name.
    // Until the pages of its last registration are locked.
    std::weak_ptr<void> locking;
    std::string late_reply;  // The reply to that registration, if it waits; else empty.
  };
  struct Packet {
    std::string bytes;
    std::vector<Descriptor> descriptors;
  };

  RegionListener(RegionListenerOptions options, PacketListener listener, RegionRegistry& registry,
                 RegionMetrics& metrics, OwnerOf owner_of);
  void Loop();
  // False: the thread has to end.
  bool Wait();
  // Serves one packet of each, so that none delays another.
  void ServeAll();
  void AcceptSome();
  void Admit(Descriptor socket);
  std::size_t WithoutRegions() const;
  std::size_t OneToGiveWay() const;
  void EndAt(std::size_t index);
  absl::Status CheckHolders(const Connection& connection, const std::string& owner) const;
  bool IsBehind() const { return closer_.waiting() > kMaxUnclosed; }
  // These return false when the connection has ended.
  bool Serve(Connection& connection);
  bool Send(Connection& connection, const std::string& reply);
  void SendLateReplies();
  RegionReply Answer(Connection& connection, const Packet& packet);
  absl::StatusOr<RegionReply> Register(Connection& connection, const RegionRequest& request,
                                       const Packet& packet);
  absl::Status Unregister(Connection& connection, const std::string& name);
  void CloseAll(std::vector<Descriptor> descriptors);
  void Discard(Descriptor socket);

  const RegionListenerOptions options_;
  PacketListener listener_;  // Its socket until the end.
  RegionRegistry& registry_;
  RegionMetrics& metrics_;
  OwnerOf owner_of_;
  // The signal for the thread. shared: with the locks, which may outlive the listener.
  class Bell;
  const std::shared_ptr<Bell> bell_;
  std::atomic<bool> ending_{false};  // Read behind a ring.
  // Used by the thread alone.
  std::vector<Connection> connections_;
  std::vector<pollfd> watched_;  // bell_'s, listener_ and each connection.
  std::uint64_t last_sign_ = 0;
  bool no_descriptor_ = false;  // For a waiting connection.
  DescriptorCloser closer_;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace normd

#endif  // NORMD_SERVER_HANDOVER_REGION_LISTENER_H_
