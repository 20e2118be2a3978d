#include "server/rpc/transport_streams.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "absl/strings/numbers.h"
#include "nlohmann/json.hpp"

namespace normd {
namespace {

using nlohmann::json;

constexpr std::size_t kLeastMost = 1024;
constexpr Duration kFullInterval = std::chrono::seconds(1);

// gRPC's responses; a null text gives a discarded value.
json Parse(char* text) {
  const std::unique_ptr<char, decltype(&gpr_free)> owned(text, gpr_free);
  return text == nullptr ? json(json::value_t::discarded)
                         : json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// Protobuf writes 64-bit numbers as strings, and leaves out zeros.
std::int64_t NumberOf(const json& object, const char* name) {
  std::int64_t number = 0;
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return 0;
  return absl::SimpleAtoi(found->get_ref<const std::string&>(), &number) ? number : 0;
}

const json& Within(const json& object, const char* name) {
  static const json nothing = json::object();
  const auto found = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && found != object.end() ? *found : nothing;
}

}  // namespace

TransportStreams::TransportStreams() {
  for (bool end = false; !end;) {
    const json page = Parse(grpc_channelz_get_servers(server_ + 1));
    const json& servers = Within(page, "server");
    for (const json& one : servers) server_ = NumberOf(Within(one, "ref"), "serverId");
    end = servers.empty() || Within(page, "end") == true;
  }
}

void TransportStreams::Learn(std::int64_t from) {
  next_ = from;
  for (bool end = false; !end;) {
    const json page = Parse(grpc_channelz_get_server_sockets(server_, next_, /*max_results=*/0));
    const json& sockets = Within(page, "socketRef");
    for (const json& one : sockets) {
      const std::int64_t id = NumberOf(one, "socketId");
      next_ = id + 1;
      // "chttp2 ipv4:192.0.2.1:4711"
      const std::string name = one.value("name", "");
      sockets_[name.substr(name.find(' ') + 1)] = id;
    }
    end = sockets.empty() || Within(page, "end") == true;
  }
}

std::optional<StreamCounts> TransportStreams::CountsOf(const std::string& peer, TimePoint now) {
  auto known = sockets_.find(peer);
  if (known == sockets_.end()) {
    Learn(next_);
    known = sockets_.find(peer);
  }
  // A connection with a lower number than others may have come after them.
  if ((known == sockets_.end() && now >= next_full_) ||
      sockets_.size() > std::max(most_, kLeastMost)) {
    sockets_.clear();
    Learn(0);
    most_ = 2 * sockets_.size();
    next_full_ = now + kFullInterval;
    known = sockets_.find(peer);
  }
  if (known == sockets_.end()) return std::nullopt;
  const json socket = Parse(grpc_channelz_get_socket(known->second));
  const json& data = Within(Within(socket, "socket"), "data");
  if (data.empty()) {  // The connection has ended, and a later one may have its client's name.
    sockets_.erase(known);
    return std::nullopt;
  }
  const std::int64_t ended = NumberOf(data, "streamsSucceeded") + NumberOf(data, "streamsFailed");
  return StreamCounts{NumberOf(data, "streamsStarted") - ended, ended};
}

}  // namespace normd
