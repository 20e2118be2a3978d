#include "client/scrape/http_get.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace normd::client {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

// Owns a file descriptor.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// Waits until the socket is ready for `events`. False: the time is over.
bool WaitFor(const Socket& socket, short events, TimePoint deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        deadline - TimePoint(std::chrono::steady_clock::now()));
    pollfd poll_fd = {socket.get(), events, 0};
    const int ready =
        ::poll(&poll_fd, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
    if (ready > 0) return true;
    if (ready == 0) return false;
    if (errno != EINTR) return true;  // What is wrong shows at the next call.
  }
}

absl::Status TimedOut() { return absl::DeadlineExceededError("no answer in time"); }

absl::Status Broken(const char* what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

absl::StatusOr<Socket> ConnectTo(const addrinfo& address, TimePoint deadline) {
  Socket socket(::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
                         address.ai_protocol));
  if (socket.get() < 0) return Broken("socket", errno);
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) return Broken("cannot connect", errno);
  if (!WaitFor(socket, POLLOUT, deadline)) return TimedOut();
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return Broken("cannot connect", error);
  return socket;
}

absl::StatusOr<Socket> Connect(const HttpUrl& url, TimePoint deadline) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found);
      error != 0) {
    return absl::UnavailableError(absl::StrCat("no such host: ", ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  absl::StatusOr<Socket> socket = absl::UnavailableError("no address");
  for (const addrinfo* a = found; a != nullptr && !socket.ok(); a = a->ai_next) {
    socket = ConnectTo(*a, deadline);
  }
  return socket;
}

absl::Status SendAll(const Socket& socket, absl::string_view text, TimePoint deadline) {
  while (!text.empty()) {
    const ssize_t sent = ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      text.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      return Broken("cannot send", errno);
    } else if (!WaitFor(socket, POLLOUT, deadline)) {
      return TimedOut();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadToEnd(const Socket& socket, TimePoint deadline) {
  std::string text;
  char piece[16384];
  while (text.size() <= kMaxBytes) {
    const ssize_t got = ::recv(socket.get(), piece, sizeof(piece), 0);
    if (got == 0) return text;
    if (got > 0) {
      text.append(piece, static_cast<std::size_t>(got));
    } else if (errno != EAGAIN && errno != EINTR) {
      return Broken("the answer broke off", errno);
    } else if (!WaitFor(socket, POLLIN, deadline)) {
      return TimedOut();
    }
  }
  return absl::InternalError(absl::StrCat("the answer has more than ", kMaxBytes, " bytes"));
}

// The value of a header field, in any case of letters; empty when it lacks.
absl::string_view Field(absl::string_view head, absl::string_view name) {
  while (!head.empty()) {
    const std::size_t end = head.find("\r\n");
    const absl::string_view line = head.substr(0, end);
    if (absl::StartsWithIgnoreCase(line, name) && line.substr(name.size(), 1) == ":") {
      return absl::StripAsciiWhitespace(line.substr(name.size() + 1));
    }
    if (end == absl::string_view::npos) break;
    head.remove_prefix(end + 2);
  }
  return "";
}

absl::StatusOr<std::string> BodyOf(const std::string& answer) {
  const std::size_t end = answer.find("\r\n\r\n");
  if (!absl::StartsWith(answer, "HTTP/1.") || end == std::string::npos) {
    return absl::InternalError("the answer is no HTTP");
  }
  const absl::string_view head = absl::string_view(answer).substr(0, end + 2);
  const absl::string_view status = head.substr(0, head.find("\r\n"));
  if (status.substr(std::min(status.size(), status.find(' ')), 5) != " 200 " &&
      !absl::EndsWith(status, " 200")) {
    return absl::InternalError(absl::StrCat("the answer is ", status));
  }
  // A server that answers HTTP/1.0 with it breaks the protocol.
  if (absl::EqualsIgnoreCase(Field(head, "transfer-encoding"), "chunked")) {
    return absl::InternalError("the answer is in chunks, which HTTP/1.0 has not");
  }
  std::string body = answer.substr(end + 4);
  std::size_t length = 0;
  if (absl::SimpleAtoi(Field(head, "content-length"), &length) && body.size() < length) {
    return absl::UnavailableError("the answer broke off");
  }
  return body;
}

absl::StatusOr<std::string> Get(const HttpUrl& url, TimePoint deadline) {
  const absl::StatusOr<Socket> socket = Connect(url, deadline);
  if (!socket.ok()) return socket.status();
  const std::string request = absl::StrCat("GET ", url.path, " HTTP/1.0\r\nHost: ", url.host, ":",
                                           url.port, "\r\nAccept: text/plain\r\n\r\n");
  if (absl::Status status = SendAll(*socket, request, deadline); !status.ok()) return status;
  const absl::StatusOr<std::string> answer = ReadToEnd(*socket, deadline);
  if (!answer.ok()) return answer.status();
  return BodyOf(*answer);
}

}  // namespace

absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text) {
  const absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\", wanted an address such as http://127.0.0.1:8002/metrics"));
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "http://") && absl::StrContains(rest, "://")) return wrong;
  HttpUrl url;
  const std::size_t slash = rest.find('/');
  if (slash != absl::string_view::npos) url.path = std::string(rest.substr(slash));
  absl::string_view host = rest.substr(0, slash);
  const std::size_t colon = host.rfind(':');
  if (colon != absl::string_view::npos && !absl::EndsWith(host, "]")) {
    std::uint32_t port = 0;
    if (!absl::SimpleAtoi(host.substr(colon + 1), &port) || port == 0 || port > 65535) return wrong;
    url.port = absl::StrCat(port);
    host = host.substr(0, colon);
  }
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) return wrong;
  url.host = std::string(host);
  // What would end the request's line early.
  const bool clean =
      std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
  if (url.host.empty() || !clean) return wrong;
  return url;
}

absl::StatusOr<std::string> HttpGet(const HttpUrl& url, Duration timeout) {
  absl::StatusOr<std::string> body =
      Get(url, TimePoint(std::chrono::steady_clock::now()) + timeout);
  if (body.ok()) return body;
  return absl::Status(body.status().code(), absl::StrCat("http://", url.host, ":", url.port,
                                                         url.path, ": ", body.status().message()));
}

}  // namespace normd::client
