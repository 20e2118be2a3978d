// Takes memory that clients hand over as descriptors, for as long as their connections last.
//
// A client connects to a unix socket and sends a packet with a descriptor (wire/region_message.h);
// the reply names the region by 128 random bits, which only this client knows. A region is
// unregistered when its client says so or when the connection ends, however the client ended;
// requests that use it keep it until they end.

#ifndef NORMD_SERVER_HANDOVER_REGION_LISTENER_H_
#define NORMD_SERVER_HANDOVER_REGION_LISTENER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/descriptor.h"
#include "server/handover/packet_listener.h"
#include "server/regions/region_registry.h"
#include "wire/region_message.h"

namespace normd {

struct RegionListenerOptions {
  std::string address;                // unix:///path
  std::size_t max_connections = 256;  // More are closed at once.
};

// Whose regions those are that somebody with this `authorization` registers, or why nobody's.
using OwnerOf = absl::AnyInvocable<absl::StatusOr<std::string>(absl::string_view authorization)>;

// Takes connections of the server's own user, and of root, alone. One thread, which nothing that a
// client does can block: packets come whole, and a client that does not take its reply is closed.
class RegionListener {
 public:
  // `registry` outlives it. Unavailable when the address cannot be had.
  static absl::StatusOr<std::unique_ptr<RegionListener>> Start(RegionListenerOptions options,
                                                               RegionRegistry& registry,
                                                               OwnerOf owner_of);
  // Ends all connections, and with them their regions.
  ~RegionListener();
  RegionListener(const RegionListener&) = delete;
  RegionListener& operator=(const RegionListener&) = delete;

 private:
  struct Connection {
    Descriptor socket;
    std::vector<std::pair<std::string, std::string>> regions;  // Owner, name.
  };
  struct Packet {
    std::string bytes;
    std::vector<Descriptor> descriptors;
  };

  RegionListener(RegionListenerOptions options, PacketListener listener, RegionRegistry& registry,
                 OwnerOf owner_of);
  void Loop();
  void AcceptAll();
  // False: the connection has ended.
  bool Serve(Connection& connection);
  RegionReply Answer(Connection& connection, const Packet& packet);
  absl::StatusOr<RegionReply> Register(Connection& connection, const RegionRequest& request,
                                       const Packet& packet);
  absl::Status Unregister(Connection& connection, const std::string& name);
  void End(Connection& connection);

  const RegionListenerOptions options_;
  const PacketListener listener_;
  RegionRegistry& registry_;
  OwnerOf owner_of_;
  const Descriptor wake_;  // Readable: the thread is to end.
  // The thread's.
  std::vector<Connection> connections_;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace normd

#endif  // NORMD_SERVER_HANDOVER_REGION_LISTENER_H_
