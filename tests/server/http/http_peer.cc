#include "tests/server/http/http_peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace normd::testing {
namespace {

sockaddr_in Address(const char* host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

// `call` until no signal interrupts it. libFuzzer's timer sends one every few seconds.
template <class Call>
auto Uninterrupted(const Call& call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

// A connect that a signal interrupts goes on by itself, and another one would be refused.
bool Connect(int fd, const sockaddr_in& to) {
  if (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return true;
  if (errno != EINTR) return false;
  pollfd wait = {fd, POLLOUT, 0};
  int error = 0;
  socklen_t size = sizeof(error);
  return Uninterrupted([&] { return poll(&wait, 1, -1); }) == 1 &&
         getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

}  // namespace

HttpPeer::HttpPeer(int port, const char* source)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const sockaddr_in from = Address(source, 0);
  const sockaddr_in to = Address("127.0.0.1", port);
  if (bind(fd_, reinterpret_cast<const sockaddr*>(&from), sizeof(from)) != 0 || !Connect(fd_, to)) {
    close(fd_);
    fd_ = -1;
  }
}

HttpPeer::~HttpPeer() {
  if (fd_ >= 0) close(fd_);
}

bool HttpPeer::Send(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent =
        Uninterrupted([&] { return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

void HttpPeer::EndSending() { shutdown(fd_, SHUT_WR); }

std::string HttpPeer::ReadSome() {
  std::string bytes(1 << 16, '\0');
  const ssize_t got = Uninterrupted([&] { return recv(fd_, bytes.data(), bytes.size(), 0); });
  bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return bytes;
}

std::string HttpPeer::ReadAll() {
  std::string all;
  char chunk[65536];
  const auto receive = [&] { return recv(fd_, chunk, sizeof(chunk), 0); };
  for (ssize_t got; (got = Uninterrupted(receive)) > 0;) {
    all.append(chunk, static_cast<std::size_t>(got));
  }
  return all;
}

void HttpPeer::WaitClosed() const {
  pollfd wait = {fd_, POLLRDHUP, 0};
  while (poll(&wait, 1, -1) <= 0) {
  }
}

void HttpPeer::WaitReset() const {
  pollfd wait = {fd_, 0, 0};
  while (poll(&wait, 1, -1) <= 0) {
  }
}

std::string HttpGet(int port, const std::string& path, const char* source,
                    const std::string& headers) {
  HttpPeer peer(port, source);
  if (!peer.Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n", headers, "\r\n"))) {
    return "";
  }
  return peer.ReadAll();
}

std::string HttpBody(const std::string& answer) {
  const std::size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

}  // namespace normd::testing
