#include "server/accept/caller_name.h"

#include <arpa/inet.h>

#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"

namespace normd {
namespace {

constexpr absl::string_view kIpv6 = "ipv6:";
constexpr std::size_t kNetworkBytes = 8;

}  // namespace

CallerName::CallerName(std::string connection) : connection_(std::move(connection)) {
  const absl::string_view name = connection_;
  address_ = absl::StartsWith(name, "ip") ? name.substr(0, name.rfind(':')) : name;
  if (!absl::StartsWith(address_, kIpv6)) return;
  // gRPC escapes the brackets, and a zone follows a percent sign that is escaped too.
  std::string text = absl::StrReplaceAll(address_.substr(kIpv6.size()),
                                         {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}});
  text.resize(text.substr(0, text.find('%')).size());
  in6_addr address;
  if (inet_pton(AF_INET6, text.c_str(), &address) != 1) return;
  peer_.assign(kIpv6.begin(), kIpv6.end());
  peer_.append(reinterpret_cast<const char*>(address.s6_addr), kNetworkBytes);
}

}  // namespace normd
