// Conditions between flags, and values that follow from several flags.

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/config/flags.h"

namespace normd {
namespace {

absl::Status CheckAccess(const ServerConfig& c) {
  if (c.policy_file.empty() && !c.tokens_file.empty()) {
    return FlagSet::Wrong("policy_file", "empty",
                          "the policy that says who has the tokens of --tokens_file");
  }
  if (c.admin == "off" && !c.admin_listen.empty()) {
    return FlagSet::Wrong("admin_listen", absl::StrCat("\"", c.admin_listen, "\""),
                          "none with --admin=off");
  }
  return absl::OkStatus();
}

absl::Status CheckSharedMemory(const ServerConfig& c) {
  if (c.shared_memory == "off" && !c.shared_memory_listen.empty()) {
    return FlagSet::Wrong("shared_memory", "off", "fd or named for --shared_memory_listen");
  }
  if (c.shared_memory == "fd" && c.shared_memory_listen.empty()) {
    return FlagSet::Wrong("shared_memory_listen", "empty",
                          "the socket of --shared_memory=fd, such as unix:///run/normd/regions");
  }
  return absl::OkStatus();
}

absl::Status CheckTls(const ServerConfig& c) {
  if (c.tls_cert.empty() != c.tls_key.empty()) {
    return c.tls_key.empty() ? FlagSet::Wrong("tls_key", "empty", "the key of --tls_cert")
                             : FlagSet::Wrong("tls_cert", "empty", "the certificate of --tls_key");
  }
  const bool tls = !c.tls_cert.empty();
  const bool asks = c.tls_client_auth == "allow" || c.tls_client_auth == "require";
  if (!tls && (asks || !c.tls_client_ca.empty())) {
    return FlagSet::Wrong("tls_cert", "empty",
                          "the server's certificate: without TLS clients show none either");
  }
  if (asks && c.tls_client_ca.empty()) {
    return FlagSet::Wrong("tls_client_ca", "empty",
                          absl::StrCat("a file for --tls_client_auth=", c.tls_client_auth));
  }
  const std::vector<OpenListener> open = ListenersInTheClear(c);
  if (c.insecure || open.empty()) return absl::OkStatus();
  std::string got = absl::StrCat("\"", open[0].address, "\" without TLS");
  for (std::size_t i = 1; i < open.size(); ++i) {
    absl::StrAppend(&got, ", likewise --", open[i].flag, ": \"", open[i].address, "\"");
  }
  return FlagSet::Wrong(open[0].flag, got,
                        "--tls_cert and --tls_key, an address of loopback, or --insecure");
}

}  // namespace

absl::Status CheckTogether(const ServerConfig& c) {
  if (absl::Status status = CheckAccess(c); !status.ok()) return status;
  if (absl::Status status = CheckTls(c); !status.ok()) return status;
  if (absl::Status status = CheckSharedMemory(c); !status.ok()) return status;
  // A request counts its input and its output.
  if (c.max_inflight_bytes / 2 < c.max_request_bytes) {
    return FlagSet::Wrong(
        "max_inflight_bytes", absl::StrCat(c.max_inflight_bytes),
        absl::StrCat("at least twice --max_request_bytes, ", c.max_request_bytes));
  }
  if (c.max_inflight_bytes / 2 < c.stream_window_bytes) {
    return FlagSet::Wrong(
        "max_inflight_bytes", absl::StrCat(c.max_inflight_bytes),
        absl::StrCat("at least twice --stream_window_bytes, ", c.stream_window_bytes));
  }
  // The largest message must fit, on its way in and out.
  if (c.max_transport_bytes > 0 && c.max_transport_bytes / 2 < c.max_request_bytes) {
    return FlagSet::Wrong(
        "max_transport_bytes", absl::StrCat(c.max_transport_bytes),
        absl::StrCat("0, or at least twice --max_request_bytes, ", c.max_request_bytes));
  }
  return absl::OkStatus();
}

std::vector<std::string> ModelFolders(const ServerConfig& config) {
  return absl::StrSplit(config.model_repository, ',');
}

bool IsLocal(const std::string& address) {
  if (absl::StartsWith(address, "unix:")) return true;
  std::string host = address.substr(0, address.rfind(':'));
  if (absl::EqualsIgnoreCase(host, "localhost")) return true;
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  in_addr ipv4 = {};
  if (inet_pton(AF_INET, host.c_str(), &ipv4) == 1) return ntohl(ipv4.s_addr) >> 24 == 127;
  in6_addr ipv6 = {};
  if (inet_pton(AF_INET6, host.c_str(), &ipv6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&ipv6) || (IN6_IS_ADDR_V4MAPPED(&ipv6) && ipv6.s6_addr[12] == 127);
}

std::vector<OpenListener> ListenersInTheClear(const ServerConfig& config) {
  const bool tls = !config.tls_cert.empty();
  std::vector<OpenListener> open;
  const auto add = [&open](const char* flag, const std::string& addresses, bool has_tls) {
    for (const absl::string_view one : absl::StrSplit(addresses, ',', absl::SkipEmpty())) {
      const std::string address(one);
      if (!has_tls && !IsLocal(address)) open.push_back({flag, address});
    }
  };
  add("listen", config.listen, tls);
  add("http_listen", config.http_listen, tls);
  add("admin_listen", config.admin_listen, tls);
  add("metrics_listen", config.metrics_listen, tls && config.metrics_tls);
  return open;
}

std::string WideAddresses(const ServerConfig& config) {
  std::vector<std::string> addresses =
      absl::StrSplit(absl::StrCat(config.listen, ",", config.http_listen), ',', absl::SkipEmpty());
  std::erase_if(addresses, IsLocal);
  return absl::StrJoin(addresses, ",");
}

AdminPlace DecideAdminPlace(const ServerConfig& config) {
  if (config.admin == "off") return AdminPlace::kNowhere;
  if (!config.admin_listen.empty()) return AdminPlace::kAdminListener;
  const bool taken =
      config.admin == "on" || !config.policy_file.empty() || WideAddresses(config).empty();
  return taken ? AdminPlace::kEverywhere : AdminPlace::kNowhere;
}

}  // namespace normd
