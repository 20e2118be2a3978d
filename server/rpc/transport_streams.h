// The number of streams that gRPC holds of each of a server's connections.

#ifndef NORMD_SERVER_RPC_TRANSPORT_STREAMS_H_
#define NORMD_SERVER_RPC_TRANSPORT_STREAMS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "base/clock.h"
#include "server/net/stream_count.h"

namespace normd {

// No handler sees streams of which only the headers have come: gRPC waits for their message. Its
// own accounts (channelz) count them. Not thread-safe; takes short locks of gRPC's.
class TransportStreams {
 public:
  // Counts for the last server that was started in this process.
  TransportStreams();

  // For a connection by its client's name, "ipv4:192.0.2.1:4711", as in grpc_call_get_peer; nullopt
  // for one that gRPC does not know, or not yet. Takes some ten microseconds, and more the first
  // time.
  std::optional<StreamCounts> CountsOf(const std::string& peer, TimePoint now);

 private:
  // Adds the connections with the number `from` or a later one.
  void Learn(std::int64_t from);

  std::int64_t server_ = 0;
  absl::flat_hash_map<std::string, std::int64_t> sockets_;  // gRPC's numbers, which count up.
  std::int64_t next_ = 0;                                   // The first unknown one.
  std::size_t most_ = 0;  // The size of sockets_ above which ended connections are removed.
  TimePoint next_full_ = TimePoint::min();
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_TRANSPORT_STREAMS_H_
