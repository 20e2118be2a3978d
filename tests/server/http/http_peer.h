// A peer of an HTTP server on loopback that sends and reads just what a test says.

#ifndef NORMD_TESTS_SERVER_HTTP_HTTP_PEER_H_
#define NORMD_TESTS_SERVER_HTTP_HTTP_PEER_H_

#include <string>

#include "absl/strings/string_view.h"

namespace normd::testing {

class HttpPeer {
 public:
  // From `source`, an address of loopback. Connected, unless the server refuses.
  explicit HttpPeer(int port, const char* source = "127.0.0.1");
  ~HttpPeer();
  HttpPeer(HttpPeer&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  HttpPeer& operator=(HttpPeer&&) = delete;

  bool connected() const { return fd_ >= 0; }
  // False when the server has closed the connection.
  bool Send(absl::string_view bytes);
  // Nothing more is sent.
  void EndSending();
  // All that comes until the server closes the connection.
  std::string ReadAll();
  // What comes next; empty when the server has closed the connection.
  std::string ReadSome();
  // Waits until the server closes the connection, and reads nothing.
  void WaitClosed() const;
  // Waits until the server resets the connection, and reads nothing.
  void WaitReset() const;

 private:
  int fd_ = -1;
};

// What a GET is answered with, head and body; empty when there is no response.
std::string HttpGet(int port, const std::string& path, const char* source = "127.0.0.1",
                    const std::string& headers = "");

// What follows the head.
std::string HttpBody(const std::string& answer);

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_HTTP_HTTP_PEER_H_
