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

// Memory that nobody can make shorter.
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

// The name that the server gives the region.
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

std::size_t WholePages(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

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
    : connection_(std::move(connection)), name_(std::move(name)), data_(data), size_(size) {}

SharedRegion::~SharedRegion() { munmap(data_, size_); }

absl::Status SharedRegion::Check(std::size_t offset, std::size_t bytes) const {
  if (offset <= size_ && bytes <= size_ - offset) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("shared memory: ", bytes, " bytes from ", offset,
                                            " on, wanted a part of the region's ", size_));
}

absl::StatusOr<NamedTensor> SharedRegion::Input(std::string name, norm::DType dtype, Shape shape,
                                                std::size_t offset) const {
  const absl::StatusOr<std::int64_t> size = TensorBytes(dtype, shape);
  if (!size.ok()) return size.status();
  const auto bytes = static_cast<std::size_t>(*size);
  if (absl::Status status = Check(offset, bytes); !status.ok()) return status;
  return NamedTensor{std::move(name),
                     {dtype, std::move(shape), {data_ + offset, bytes}},
                     shared_from_this(),
                     name_,
                     static_cast<std::int64_t>(offset)};
}

absl::StatusOr<SharedOutput> SharedRegion::Output(std::string name, std::size_t offset,
                                                  std::size_t bytes) const {
  if (absl::Status status = Check(offset, bytes); !status.ok()) return status;
  return SharedOutput{std::move(name),
                      name_,
                      static_cast<std::int64_t>(offset),
                      {data_ + offset, bytes},
                      shared_from_this()};
}

}  // namespace normd::client
