// A client of the HTTP front end that sends just what a test says and reads one response at a time.

#ifndef NORMD_TESTS_SERVER_REST_REST_CLIENT_H_
#define NORMD_TESTS_SERVER_REST_REST_CLIENT_H_

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "tests/server/http/http_peer.h"

namespace normd::testing {

struct RestAnswer {
  int status = 0;                              // 0: the server has closed the connection.
  std::map<std::string, std::string> headers;  // By their names in lower case.
  std::string body;
};

class RestClient {
 public:
  explicit RestClient(int port, const char* source = "127.0.0.1") : peer_(port, source) {}

  bool Send(absl::string_view bytes) { return peer_.Send(bytes); }
  void EndSending() { peer_.EndSending(); }
  void WaitClosed() const { peer_.WaitClosed(); }
  void WaitReset() const { peer_.WaitReset(); }
  // The next response. Of one to HEAD only the head comes.
  RestAnswer Read(bool head_only = false);
  RestAnswer Call(absl::string_view request) {
    Send(request);
    return Read();
  }
  RestAnswer Get(const std::string& path, const std::string& headers = "");
  RestAnswer Post(const std::string& path, const std::string& body,
                  const std::string& headers = "");

 private:
  bool Fill();

  HttpPeer peer_;
  std::string received_;
};

// A request's head and body.
std::string PostText(const std::string& path, const std::string& body,
                     const std::string& headers = "");
// The same body in chunks of `step` bytes.
std::string ChunkedText(const std::string& path, const std::string& body, std::size_t step,
                        const std::string& headers = "");

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_REST_REST_CLIENT_H_
