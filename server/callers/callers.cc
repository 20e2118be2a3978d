#include "server/callers/callers.h"

#include <arpa/inet.h>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"

namespace normd {
namespace {

constexpr absl::string_view kIpv6 = "ipv6:";
constexpr std::size_t kNetworkBytes = 8;

}  // namespace

std::string PeerNameOf(absl::string_view connection) {
  const absl::string_view address =
      absl::StartsWith(connection, "ip") ? connection.substr(0, connection.rfind(':')) : connection;
  if (!absl::StartsWith(address, kIpv6)) return std::string(address);
  // gRPC escapes the brackets, and a zone follows a percent sign that is escaped too.
  std::string text = absl::StrReplaceAll(address.substr(kIpv6.size()),
                                         {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}});
  text.resize(text.substr(0, text.find('%')).size());
  in6_addr binary;
  if (inet_pton(AF_INET6, text.c_str(), &binary) != 1) return std::string(address);
  std::string network(kIpv6);
  return network.append(reinterpret_cast<const char*>(binary.s6_addr), kNetworkBytes);
}

std::shared_ptr<Peer> Callers::FindPeer(const std::string& name) {
  if (std::shared_ptr<Peer> found = peers_.Find(name)) return found;
  return peers_.Add(
      std::unique_ptr<Peer>(new Peer{name, next_peer_id_.fetch_add(1, std::memory_order_relaxed)}));
}

std::unique_ptr<Caller> Callers::Make(absl::string_view connection, ConnectionOrigin origin) {
  return std::unique_ptr<Caller>(
      new Caller{std::string(connection), FindPeer(PeerNameOf(connection)), origin});
}

std::shared_ptr<Caller> Callers::Begin(absl::string_view connection, ConnectionOrigin origin) {
  return connections_.Replace(Make(connection, origin));
}

bool Callers::IsOtherwise(absl::string_view connection, ConnectionOrigin origin) {
  const std::shared_ptr<Caller> held = connections_.Find(connection);
  return held != nullptr && (held->origin.admin_listener != origin.admin_listener ||
                             held->origin.listener != origin.listener);
}

std::shared_ptr<Caller> Callers::Find(absl::string_view connection) {
  if (connection.empty()) return nullptr;
  if (std::shared_ptr<Caller> found = connections_.Find(connection)) return found;
  return connections_.Add(Make(connection, {}));
}

}  // namespace normd
