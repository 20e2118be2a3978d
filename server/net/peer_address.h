// The other end of a connection.

#ifndef NORMD_SERVER_NET_PEER_ADDRESS_H_
#define NORMD_SERVER_NET_PEER_ADDRESS_H_

#include <sys/socket.h>

#include <string>

namespace normd {

struct PeerAddress {
  // The address and port in the form of gRPC's ServerContext::peer(): "ipv4:127.0.0.1:5000",
  // "ipv6:%5B::1%5D:5000".
  std::string grpc_peer;
  // The key for shares of the connections: an IPv4 address, or the /64 of an IPv6 address, because
  // one host has a whole /64 of them.
  std::string share;
  // gRPC has one name for all of them, so they are one caller and one peer.
  bool is_unix = false;
};

// IPv4, IPv6 (an IPv4 address in an IPv6 one counts as IPv4), and unix sockets, which give "unix:"
// twice; anything else gives "unknown" twice.
PeerAddress PeerAddressOf(const sockaddr_storage& address);

}  // namespace normd

#endif  // NORMD_SERVER_NET_PEER_ADDRESS_H_
