#include "client/shared_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "wire/region_message.h"

namespace normd::client {
namespace {

absl::Status SystemError(const char* what) {
  return absl::UnavailableError(absl::StrCat("shared memory: ", what, ": ", std::strerror(errno)));
}

absl::StatusOr<Descriptor> ConnectTo(const std::string& address) {
  absl::string_view path = address;
  sockaddr_un at = {};
  at.sun_family = AF_UNIX;
  const bool is_unix = absl::ConsumePrefix(&path, "unix:");
  absl::ConsumePrefix(&path, "//");
  if (!is_unix || !absl::StartsWith(path, "/") || path.size() >= sizeof(at.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("address: \"", address,
                                                   "\", wanted unix:///path "
                                                   "of at most ",
                                                   sizeof(at.sun_path) - 1, " bytes"));
  }
  std::memcpy(at.sun_path, path.data(), path.size());
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid() ||
      connect(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0) {
    return SystemError(address.c_str());
  }
  return socket;
}

// Memory that nobody can shrink.
absl::StatusOr<Descriptor> SealedMemory(std::size_t bytes) {
  Descriptor file(memfd_create("normd_client", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid() || ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return SystemError(absl::StrCat(bytes, " bytes").c_str());
  }
  return file;
}

absl::Status SendWith(int socket, const std::string& packet, int file) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  iovec part = {const_cast<char*>(packet.data()), packet.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &file, sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL) < 0 ? SystemError("cannot be handed over")
                                                     : absl::OkStatus();
}

// Registers the file and returns the server's name for the region.
absl::StatusOr<std::string> Register(int socket, int file, absl::string_view token) {
  RegionRequest request;
  if (!token.empty()) request.text = absl::StrCat("Bearer ", token);
  absl::Status status = SendWith(socket, EncodeRegionRequest(request), file);
  if (!status.ok()) return status;
  std::array<char, kMaxRegionPacketBytes + 1> packet;
  const ssize_t size = recv(socket, packet.data(), packet.size(), 0);
  if (size <= 0)
    return absl::UnavailableError("shared memory: the server has ended the connection");
  absl::StatusOr<RegionReply> reply =
      DecodeRegionReply(absl::string_view(packet.data(), static_cast<std::size_t>(size)));
  if (!reply.ok()) return reply.status();
  if (reply->code != absl::StatusCode::kOk) return absl::Status(reply->code, reply->text);
  return std::move(reply->text);
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedRegion>> SharedRegion::Create(const std::string& address,
                                                                   std::size_t bytes,
                                                                   absl::string_view token) {
  if (bytes == 0) return absl::InvalidArgumentError("shared memory: 0 bytes, wanted some");
  absl::StatusOr<Descriptor> connection = ConnectTo(address);
  if (!connection.ok()) return connection.status();
  const absl::StatusOr<Descriptor> file = SealedMemory(bytes);
  if (!file.ok()) return file.status();
  absl::StatusOr<std::string> name = Register(connection->get(), file->get(), token);
  if (!name.ok()) return name.status();
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->get(), 0);
  if (at == MAP_FAILED) return SystemError(absl::StrCat(bytes, " bytes").c_str());
  return std::shared_ptr<SharedRegion>(new SharedRegion(*std::move(connection), *std::move(name),
                                                        static_cast<std::byte*>(at), bytes));
}

SharedRegion::SharedRegion(Descriptor connection, std::string name, std::byte* data,
                           std::size_t size)
    : Region(std::move(name), data, size), connection_(std::move(connection)) {}

SharedRegion::~SharedRegion() { munmap(address(), size()); }

absl::Status SharedRegion::CopyIn(std::byte* to, absl::Span<const std::byte> from) const {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
  return absl::OkStatus();
}

absl::Status SharedRegion::CopyOut(absl::Span<std::byte> to, const std::byte* from) const {
  if (!to.empty()) std::memcpy(to.data(), from, to.size());
  return absl::OkStatus();
}

}  // namespace normd::client
