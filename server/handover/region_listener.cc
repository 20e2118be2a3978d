#include "server/handover/region_listener.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <new>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/net/process_limits.h"
#include "server/net/socket_calls.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

// The most connections accepted before existing ones have their turn.
constexpr int kConnectionsAtOnce = 64;
// The pause after which to retry: accepting without a descriptor, and everything while too much
// waits to be closed.
constexpr int kPauseMillis = 10;

// The whole file as a region, without owner and name. FailedPrecondition, with what came and what
// was wanted, unless it is memory (memfd_create) that is sealed against shrinking (F_SEAL_SHRINK),
// in pages of the usual size, and not empty. One that is open only for reading, or sealed against
// writing, is not writable.
absl::StatusOr<RegionFacts> FactsOfPassedFile(int file) {
  // Only memory answers this.
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0) {
    return absl::FailedPreconditionError(
        "descriptor: no memory of memfd_create, wanted one that can be sealed");
  }
  if ((seals & F_SEAL_SHRINK) == 0) {
    return absl::FailedPreconditionError(
        "descriptor: memory that can be made shorter, wanted it sealed with F_SEAL_SHRINK");
  }
  struct statfs system = {};
  struct stat found = {};
  if (fstatfs(file, &system) != 0 || fstat(file, &found) != 0 || system.f_type == HUGETLBFS_MAGIC) {
    return absl::FailedPreconditionError(
        "descriptor: memory in pages of another size, wanted memfd_create without MFD_HUGETLB");
  }
  if (found.st_size < 1) {
    return absl::FailedPreconditionError("descriptor: memory of 0 bytes, wanted at least 1");
  }
  const int mode = fcntl(file, F_GETFL);
  if (mode < 0 || (mode & O_ACCMODE) == O_WRONLY || (mode & O_PATH) != 0) {
    return absl::FailedPreconditionError("descriptor: cannot be read, wanted it open for reading");
  }
  RegionFacts facts;
  facts.kind = RegionKind::kDescriptor;
  facts.bytes = found.st_size;
  facts.writable = (mode & O_ACCMODE) == O_RDWR && (seals & F_SEAL_WRITE) == 0 &&
                   (seals & F_SEAL_FUTURE_WRITE) == 0;
  return facts;
}

// 128 random bits, which nobody can guess.
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

// Takes the descriptors of a packet; the caller closes them.
void TakeDescriptors(msghdr& message, std::vector<Descriptor>& taken) {
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(at) + i * sizeof(int), sizeof(int));
      taken.emplace_back(fd);
    }
  }
}

}  // namespace

// Thread-safe.
class RegionListener::Bell {
 public:
  int descriptor() const { return event_.get(); }
  // Needs no memory: the end of a wait calls it.
  void Ring() {
    const std::uint64_t one = 1;
    (void)!write(event_.get(), &one, sizeof(one));
  }
  void Stop() {
    std::uint64_t count = 0;
    (void)!read(event_.get(), &count, sizeof(count));
  }

 private:
  const Descriptor event_ = Opened(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
};

absl::StatusOr<std::unique_ptr<RegionListener>> RegionListener::Start(RegionListenerOptions options,
                                                                      RegionRegistry& registry,
                                                                      RegionMetrics& metrics,
                                                                      OwnerOf owner_of) {
  absl::StatusOr<PacketListener> listener = ListenForPackets(options.address);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<RegionListener>(new RegionListener(
      std::move(options), *std::move(listener), registry, metrics, std::move(owner_of)));
}

RegionListener::RegionListener(RegionListenerOptions options, PacketListener listener,
                               RegionRegistry& registry, RegionMetrics& metrics, OwnerOf owner_of)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      registry_(registry),
      metrics_(metrics),
      owner_of_(std::move(owner_of)),
      bell_(std::make_shared<Bell>()),
      thread_([this] { Loop(); }) {
  pthread_setname_np(thread_.native_handle(), "regions");
}

RegionListener::~RegionListener() {
  ending_ = true;
  bell_->Ring();
  thread_.join();
  while (!connections_.empty()) EndAt(connections_.size() - 1);
  // Connections that wait to be accepted may have sent something already.
  Discard(std::move(listener_.socket));
}

void RegionListener::Loop() {
  // SendLateReplies may have read the final ring with others.
  while (!ending_) {
    try {
      if (!Wait()) return;
      ServeAll();
      if (watched_[0].revents != 0) SendLateReplies();
      if (watched_[1].revents != 0) AcceptSome();
    } catch (const std::bad_alloc&) {
      poll(nullptr, 0, kPauseMillis);  // Then there may be memory.
    }
  }
}

bool RegionListener::Wait() {
  const bool behind = IsBehind();
  const bool accepts = !behind && !no_descriptor_;
  // poll skips negative numbers.
  watched_.clear();
  watched_.push_back({bell_->descriptor(), POLLIN, 0});
  watched_.push_back({accepts ? listener_.socket.get() : -1, POLLIN, 0});
  for (const Connection& connection : connections_) {
    // While a connection waits for its reply, only its end is watched.
    const short events = connection.late_reply.empty() ? POLLIN : 0;
    watched_.push_back({behind ? -1 : connection.socket.get(), events, 0});
  }
  no_descriptor_ = false;
  const int count = poll(watched_.data(), watched_.size(), accepts ? -1 : kPauseMillis);
  if (count < 0 && errno != EINTR) return false;
  return !ending_;
}

void RegionListener::ServeAll() {
  for (std::size_t i = connections_.size(); i-- > 0 && !IsBehind();) {
    if (watched_[i + 2].revents == 0) continue;
    bool goes_on = false;
    try {
      goes_on = Serve(connections_[i]);
    } catch (const std::bad_alloc&) {
      shutdown(connections_[i].socket.get(), SHUT_RDWR);  // It may be owed a reply.
    }
    if (!goes_on) EndAt(i);
  }
}

void RegionListener::AcceptSome() {
  for (int i = 0; i < kConnectionsAtOnce && !IsBehind(); ++i) {
    Descriptor socket(
        accept4(listener_.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      Admit(std::move(socket));
    } else {
      // Without a descriptor the listener stays readable: the loop would spin.
      no_descriptor_ = errno == EMFILE || errno == ENFILE;
      return;
    }
  }
}

void RegionListener::Admit(Descriptor socket) {
  const std::optional<ucred> peer = PeerProcess(socket.get());
  if (!MayUseSocket(peer)) {
    metrics_.RecordConnectionEnded(HandoverEnding::kUser);
    return Discard(std::move(socket));
  }
  // There may be more than one too many: a connection stays after its region is unregistered.
  while (WithoutRegions() >= options_.limits.without_regions) {
    metrics_.RecordConnectionEnded(HandoverEnding::kNoRegion);
    EndAt(OneToGiveWay());
  }
  connections_.push_back({std::move(socket), peer->pid, ++last_sign_, {}, {}, {}});
  metrics_.AddConnections(1);
}

std::size_t RegionListener::WithoutRegions() const {
  return static_cast<std::size_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [](const Connection& connection) { return connection.regions.empty(); }));
}

// A process that fills the limit thus loses its own connections, not those of others.
std::size_t RegionListener::OneToGiveWay() const {
  std::map<pid_t, std::size_t> of_process;
  for (const Connection& connection : connections_) {
    if (connection.regions.empty()) ++of_process[connection.process];
  }
  std::optional<std::size_t> chosen;
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    const Connection& connection = connections_[i];
    if (!connection.regions.empty()) continue;
    const auto rank = [&](const Connection& one) {
      return std::pair(of_process[one.process], ~one.last_sign);
    };
    if (!chosen.has_value() || rank(connection) > rank(connections_[*chosen])) chosen = i;
  }
  return *chosen;
}

void RegionListener::SendLateReplies() {
  bell_->Stop();
  for (std::size_t i = connections_.size(); i-- > 0;) {
    Connection& connection = connections_[i];
    if (connection.late_reply.empty() || !connection.locking.expired()) continue;
    if (!Send(connection, std::exchange(connection.late_reply, {}))) EndAt(i);
  }
}

bool RegionListener::Serve(Connection& connection) {
  if (!connection.late_reply.empty()) return false;  // The connection has ended.
  Packet packet;
  packet.bytes.reserve(kMaxRegionPacketBytes + 1);
  packet.descriptors.reserve(kMaxPassedDescriptors);  // What comes has a place.
  std::array<char, kMaxRegionPacketBytes + 1> bytes;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxPassedDescriptors * sizeof(int))> control;
  iovec part = {bytes.data(), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = recvmsg(connection.socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  // The connection has ended. An empty packet, which no client sends, ends it too.
  if (size == 0) return false;
  connection.last_sign = ++last_sign_;
  packet.bytes.assign(bytes.data(), static_cast<std::size_t>(size));
  TakeDescriptors(message, packet.descriptors);
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
  // After the reply, clients can rely on the server holding no descriptor of their memory.
  CloseAll(std::move(packet.descriptors));
  std::string wire = EncodeRegionReply(reply);
  if (connection.locking.expired()) return Send(connection, wire);
  connection.late_reply = std::move(wire);  // The bell rings, or has just rung.
  return true;
}

// A client that does not take its reply is closed.
bool RegionListener::Send(Connection& connection, const std::string& reply) {
  return send(connection.socket.get(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(reply.size());
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
  if (absl::Status may = CheckHolders(connection, *owner); !may.ok()) return may;
  const RegionReply reply = {absl::StatusCode::kOk, facts->bytes, *name};
  connection.regions.emplace_back(*std::move(owner), *std::move(name));
  std::shared_ptr<void> until(bell_.get(), [bell = bell_](void*) { bell->Ring(); });
  connection.locking = until;
  absl::Status status = registry_.RegisterFile(file, *std::move(facts), {std::move(until)});
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

absl::Status RegionListener::CheckHolders(const Connection& connection,
                                          const std::string& owner) const {
  if (!connection.regions.empty()) return absl::OkStatus();
  std::size_t all = 0;
  std::size_t owners = 0;
  for (const Connection& other : connections_) {
    if (other.regions.empty()) continue;
    ++all;
    if (other.regions.front().first == owner) ++owners;
  }
  if (all < options_.limits.with_regions && owners < options_.limits.owner_with_regions) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "connections: ", all, " hold regions, ", owners,
      " of them of this client's identity, wanted ", "fewer than ", options_.limits.with_regions,
      " and ", options_.limits.owner_with_regions, " for another (RLIMIT_NOFILE)"));
}

void RegionListener::EndAt(std::size_t index) {
  Connection& connection = connections_[index];
  for (const auto& [owner, name] : connection.regions) {
    registry_.Unregister(owner, name, InUse::kFinish).IgnoreError();
  }
  Descriptor socket = std::move(connection.socket);
  connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(index));
  metrics_.AddConnections(-1);
  Discard(std::move(socket));
}

// Closing memory takes no longer than unmapping it; any other descriptor may take arbitrarily long.
void RegionListener::CloseAll(std::vector<Descriptor> descriptors) {
  std::erase_if(descriptors, [](const Descriptor& descriptor) {
    return fcntl(descriptor.get(), F_GET_SEALS) >= 0;
  });
  closer_.Close(std::move(descriptors));
}

void RegionListener::Discard(Descriptor socket) {
  std::vector<Descriptor> one;
  one.push_back(std::move(socket));
  closer_.Close(std::move(one));
}

}  // namespace normd
