#include "server/handover/region_listener.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/handover/passed_file.h"
#include "server/net/socket_calls.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

// How many descriptors of one packet are looked for. One is right; more are closed.
constexpr std::size_t kMaxDescriptors = 4;

// Nobody can guess it: 128 random bits.
absl::StatusOr<std::string> NewName() {
  char bits[16];
  if (getrandom(bits, sizeof(bits), 0) != sizeof(bits)) {
    return absl::UnavailableError("region: the system has no random bits for its name");
  }
  return absl::StrCat("fd-", absl::BytesToHexString(absl::string_view(bits, sizeof(bits))));
}

RegionReply ReplyTo(const absl::Status& status) {
  return {status.code(), 0, std::string(status.message())};
}

// The descriptors that came with a packet; from here on somebody's who closes them.
std::vector<Descriptor> TakeDescriptors(msghdr& message) {
  std::vector<Descriptor> taken;
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(at) + i * sizeof(int), sizeof(int));
      taken.emplace_back(fd);
    }
  }
  return taken;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RegionListener>> RegionListener::Start(RegionListenerOptions options,
                                                                      RegionRegistry& registry,
                                                                      OwnerOf owner_of) {
  absl::StatusOr<PacketListener> listener = ListenForPackets(options.address);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<RegionListener>(
      new RegionListener(std::move(options), *std::move(listener), registry, std::move(owner_of)));
}

RegionListener::RegionListener(RegionListenerOptions options, PacketListener listener,
                               RegionRegistry& registry, OwnerOf owner_of)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      registry_(registry),
      owner_of_(std::move(owner_of)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      thread_([this] { Loop(); }) {
  pthread_setname_np(thread_.native_handle(), "regions");
}

RegionListener::~RegionListener() {
  const std::uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
  thread_.join();
  for (Connection& connection : connections_) End(connection);
}

void RegionListener::Loop() {
  std::vector<pollfd> watched;
  for (;;) {
    watched.clear();
    watched.push_back({wake_.get(), POLLIN, 0});
    watched.push_back({listener_.socket.get(), POLLIN, 0});
    for (const Connection& connection : connections_) {
      watched.push_back({connection.socket.get(), POLLIN, 0});
    }
    if (poll(watched.data(), watched.size(), -1) < 0 && errno != EINTR) return;
    if (watched[0].revents != 0) return;
    // One packet of each, so that none holds up another.
    for (std::size_t i = connections_.size(); i-- > 0;) {
      if (watched[i + 2].revents == 0 || Serve(connections_[i])) continue;
      End(connections_[i]);
      connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (watched[1].revents != 0) AcceptAll();
  }
}

void RegionListener::AcceptAll() {
  for (;;) {
    Descriptor socket(
        accept4(listener_.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      // Without a descriptor for it the listener stays readable: the loop would spin.
      if (errno == EMFILE || errno == ENFILE) usleep(10'000);
      return;
    }
    const std::optional<uid_t> user = PeerUid(socket.get());
    const bool may = user == geteuid() || user == uid_t{0};
    if (!may || connections_.size() >= options_.max_connections) continue;
    connections_.push_back({std::move(socket), {}});
  }
}

bool RegionListener::Serve(Connection& connection) {
  std::array<char, kMaxRegionPacketBytes + 1> bytes;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control;
  iovec part = {bytes.data(), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = recvmsg(connection.socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  if (size == 0) return false;  // Its end. An empty packet, which no client sends, ends it too.
  Packet packet;
  packet.bytes.assign(bytes.data(), static_cast<std::size_t>(size));
  packet.descriptors = TakeDescriptors(message);
  RegionReply reply;
  if ((message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0) {
    reply = ReplyTo(absl::InvalidArgumentError(
        "packet: too long, or too many descriptors, wanted at most one"));
  } else {
    try {
      reply = Answer(connection, packet);
    } catch (const std::bad_alloc&) {
      reply = ReplyTo(absl::ResourceExhaustedError("memory: the server has none left for this"));
    }
  }
  // Whoever has the reply can rely on the server holding no descriptor of theirs.
  packet.descriptors.clear();
  const std::string wire = EncodeRegionReply(reply);
  // A client that does not take its reply has no more to say.
  return send(connection.socket.get(), wire.data(), wire.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(wire.size());
}

RegionReply RegionListener::Answer(Connection& connection, const Packet& packet) {
  const absl::StatusOr<RegionRequest> request = DecodeRegionRequest(packet.bytes);
  if (!request.ok()) return ReplyTo(request.status());
  if (request->kind == RegionRequest::Kind::kUnregister) {
    return ReplyTo(Unregister(connection, request->text));
  }
  absl::StatusOr<RegionReply> reply = Register(connection, *request, packet);
  return reply.ok() ? *std::move(reply) : ReplyTo(reply.status());
}

absl::StatusOr<RegionReply> RegionListener::Register(Connection& connection,
                                                     const RegionRequest& request,
                                                     const Packet& packet) {
  if (packet.descriptors.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("descriptors: ", packet.descriptors.size(), ", wanted one"));
  }
  absl::StatusOr<std::string> owner = owner_of_(request.text);
  if (!owner.ok()) return owner.status();
  const int file = packet.descriptors[0].get();
  absl::StatusOr<RegionFacts> facts = FactsOfPassedFile(file);
  if (!facts.ok()) return facts.status();
  absl::StatusOr<std::string> name = NewName();
  if (!name.ok()) return name.status();
  facts->owner = *owner;
  facts->name = *name;
  const RegionReply reply = {absl::StatusCode::kOk, facts->bytes, *name};
  connection.regions.emplace_back(*std::move(owner), *std::move(name));
  absl::Status status = registry_.RegisterFile(file, *std::move(facts));
  if (!status.ok()) {
    connection.regions.pop_back();
    return status;
  }
  spdlog::debug("a client has handed over {} bytes", reply.bytes);
  return reply;
}

absl::Status RegionListener::Unregister(Connection& connection, const std::string& name) {
  const auto found = std::find_if(connection.regions.begin(), connection.regions.end(),
                                  [&](const auto& region) { return region.second == name; });
  if (found == connection.regions.end()) {
    return absl::NotFoundError("region: not one of this connection's");
  }
  absl::Status status = registry_.Unregister(found->first, found->second, InUse::kRefuse);
  if (status.ok()) connection.regions.erase(found);
  return status;
}

void RegionListener::End(Connection& connection) {
  for (const auto& [owner, name] : connection.regions) {
    registry_.Unregister(owner, name, InUse::kFinish).IgnoreError();
  }
}

}  // namespace normd
