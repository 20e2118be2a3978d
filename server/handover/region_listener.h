// Takes memory that clients hand over as descriptors, for as long as their connections last.
//
// A client connects to a unix socket and sends a packet with a descriptor (wire/region_message.h);
// the reply names the region by 128 random bits, which only this client knows. A region is
// unregistered when its client says so or when the connection ends, however the client ended;
// requests that use it keep it until they end.

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

// Whose regions those are that somebody with this `authorization` registers, or why nobody's.
using OwnerOf = absl::AnyInvocable<absl::StatusOr<std::string>(absl::string_view authorization)>;

// Takes connections of the server's own user, and of root, alone. One thread, which nothing that a
// client does can block: packets come whole, a client that does not take its reply is closed, and
// what is passed is closed by another thread unless it is memory. While that one has more than
// kMaxUnclosed before it, nobody is served. The reply to a registration waits until the region's
// pages are locked (LockWait); until then no further packet of that connection is read.
//
// Who connects is always taken. Where as many hold no region as may, of the process that has most
// of these connections the one that has been silent longest gives way.
class RegionListener {
 public:
  // `registry` and `metrics` outlive it. Unavailable when the address cannot be had.
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
    pid_t process = 0;            // That has connected.
    std::uint64_t last_sign = 0;  // When it connected or sent, in turn.
    std::vector<std::pair<std::string, std::string>> regions;  // Owner, name.
    std::uint64_t wait = 0;  // The registration whose pages are not locked yet; 0: none.
    std::string late_reply;  // To that one.
  };
  struct Packet {
    std::string bytes;
    std::vector<Descriptor> descriptors;
  };

  RegionListener(RegionListenerOptions options, PacketListener listener, RegionRegistry& registry,
                 RegionMetrics& metrics, OwnerOf owner_of);
  void Loop();
  // False: the thread is to end.
  bool Wait();
  // One packet of each, so that none holds up another.
  void ServeAll();
  void AcceptSome();
  void Admit(Descriptor socket);
  std::size_t WithoutRegions() const;
  std::size_t OneToGiveWay() const;
  void EndAt(std::size_t index);
  absl::Status CheckHolders(const Connection& connection, const std::string& owner) const;
  bool IsBehind() const { return closer_.waiting() > kMaxUnclosed; }
  // These are false when the connection has ended.
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
  // The registrations whose pages are locked, and how the thread learns of it. shared: with the
  // locks, which may outlive the listener.
  class Locked;
  const std::shared_ptr<Locked> locked_;
  std::atomic<bool> ending_{false};  // Read behind a wake.
  // The thread's.
  std::vector<Connection> connections_;
  std::vector<pollfd> watched_;  // locked_'s, listener_ and each connection.
  std::uint64_t last_sign_ = 0;
  bool no_descriptor_ = false;  // For a connection that waits.
  DescriptorCloser closer_;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace normd

#endif  // NORMD_SERVER_HANDOVER_REGION_LISTENER_H_
