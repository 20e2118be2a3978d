#include "server/net/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

PeerAddress OfIpv4(const in_addr& address, in_port_t port) {
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &address, text, sizeof(text));
  return {absl::StrCat("ipv4:", text, ":", ntohs(port)), text, /*is_unix=*/false};
}

PeerAddress OfIpv6(const sockaddr_in6& address) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof(text));
  // gRPC writes the zone as a number, in a URI, where % and brackets are escaped.
  const std::string zone =
      address.sin6_scope_id != 0 ? absl::StrCat("%25", address.sin6_scope_id) : "";
  in6_addr network = address.sin6_addr;
  std::memset(network.s6_addr + 8, 0, 8);
  char share[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, &network, share, sizeof(share));
  return {absl::StrCat("ipv6:%5B", text, zone, "%5D:", ntohs(address.sin6_port)),
          absl::StrCat(share, "/64"), /*is_unix=*/false};
}

}  // namespace

PeerAddress PeerAddressOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in ipv4;
    std::memcpy(&ipv4, &address, sizeof(ipv4));
    return OfIpv4(ipv4.sin_addr, ipv4.sin_port);
  }
  if (address.ss_family == AF_INET6) {
    sockaddr_in6 ipv6;
    std::memcpy(&ipv6, &address, sizeof(ipv6));
    if (!IN6_IS_ADDR_V4MAPPED(&ipv6.sin6_addr)) return OfIpv6(ipv6);
    in_addr ipv4;
    std::memcpy(&ipv4, ipv6.sin6_addr.s6_addr + 12, sizeof(ipv4));
    return OfIpv4(ipv4, ipv6.sin6_port);
  }
  if (address.ss_family == AF_UNIX) return {"unix:", "unix:", /*is_unix=*/true};
  return {"unknown", "unknown", /*is_unix=*/false};
}

}  // namespace normd
