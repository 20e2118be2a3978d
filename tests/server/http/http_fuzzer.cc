// The metrics port's server, over loopback: a connection for each input, whose client sends the
// bytes in two parts, then nothing, and takes what comes. The first byte of the input says where
// the parts meet.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/mutex.h"
#include "server/http/http_server.h"
#include "tests/fuzz/expect.h"
#include "tests/server/http/check_request.h"
#include "tests/server/http/http_peer.h"

namespace normd::testing {
namespace {

constexpr std::size_t kMaxHeadBytes = 512;
constexpr char kBody[] = "here";

// A server, and what its handler is asked.
class Server {
 public:
  static Server& Get() {
    static Server* const server = new Server;
    return *server;
  }
  int port() const { return server_->port(); }
  // Those since the last time.
  std::vector<HttpRequest> TakeRequests() {
    MutexLock lock(mutex_);
    return std::exchange(requests_, {});
  }

 private:
  Server() {
    HttpServerOptions options;
    options.max_head_bytes = kMaxHeadBytes;
    options.timeout = std::chrono::hours(1);  // A machine with much to do may hold up a thread.
    const auto body = std::make_shared<const std::string>(kBody);
    auto server = HttpServer::Start("127.0.0.1:0", options,
                                    [this, body](const HttpRequest& request, auto respond) {
                                      {
                                        MutexLock lock(mutex_);
                                        requests_.push_back(request);
                                      }
                                      respond({200, "text/plain", request.accepts_gzip, body});
                                    });
    Expect(server.ok(), "a server starts", server.status().message());
    server_ = *std::move(server);
  }

  Mutex mutex_;
  std::vector<HttpRequest> requests_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<HttpServer> server_;
};

struct Response {
  int status = 0;
  std::vector<std::string> fields;  // In lower case.
  std::string body;
};

// What a client reads, by a parser of its own.
Response ParseResponse(const std::string& text) {
  Response response;
  const std::size_t end = text.find("\r\n\r\n");
  Expect(end != std::string::npos, "a response has a whole head", text);
  const std::vector<std::string> lines = absl::StrSplit(text.substr(0, end), "\r\n");
  Expect(absl::StartsWith(lines[0], "HTTP/1.1 ") && lines[0].size() > 13 &&
             absl::SimpleAtoi(lines[0].substr(9, 3), &response.status),
         "a response has its status", text);
  for (std::size_t i = 1; i < lines.size(); ++i) {
    response.fields.push_back(absl::AsciiStrToLower(lines[i]));
  }
  response.body = text.substr(end + 4);
  return response;
}

bool Has(const Response& response, const std::string& field) {
  return std::find(response.fields.begin(), response.fields.end(), field) != response.fields.end();
}

void CheckResponse(const Response& response, bool handled, absl::string_view sent) {
  static constexpr int kOwn[] = {400, 405, 431};
  Expect(handled ? response.status == 200
                 : std::count(std::begin(kOwn), std::end(kOwn), response.status) == 1,
         "a status that fits", absl::StrCat(response.status));
  Expect(Has(response, "connection: close"), "one request for each connection");
  const bool head = absl::StartsWith(sent, "HEAD ");
  const std::size_t size = handled ? sizeof(kBody) - 1 : response.body.size();
  if (!head) {
    Expect(Has(response, absl::StrCat("content-length: ", size)), "a body's length is told");
    Expect(response.body.size() == size, "a body is whole");
  }
  if (handled && head) Expect(response.body.empty(), "HEAD has no body", response.body);
}

// An address of loopback, another one each time: a closed connection keeps its port for a minute,
// and one address has 28,000.
std::string NextSource() {
  static unsigned count = 0;
  ++count;
  return absl::StrCat("127.1.", count / 250 % 250 + 1, ".", count % 250 + 1);
}

void Try(absl::string_view bytes, std::size_t meet) {
  Server& server = Server::Get();
  server.TakeRequests();
  const std::string source = NextSource();
  HttpPeer peer(server.port(), source.c_str());
  Expect(peer.connected(), "a peer connects", source);
  // Where the server has refused already, what follows is not taken.
  if (peer.Send(bytes.substr(0, meet)) && meet < bytes.size()) peer.Send(bytes.substr(meet));
  peer.EndSending();
  const std::string text = peer.ReadAll();
  const std::vector<HttpRequest> requests = server.TakeRequests();
  Expect(requests.size() <= 1, "one request for each connection");
  for (const HttpRequest& request : requests) {
    CheckRequest(request, bytes);
    Expect(absl::StartsWith(request.peer, source + ":"), "the peer is known", request.peer);
  }
  if (text.empty()) {
    Expect(requests.empty(), "whoever is handled gets a response", bytes);
    // The parser waits for more where the first line breaks off before its version.
    const absl::string_view line = bytes.substr(0, bytes.find("\r\n"));
    const std::size_t end = bytes.find("\r\n\r\n");
    const bool whole = end != absl::string_view::npos && end + 4 <= kMaxHeadBytes &&
                       absl::StartsWith(line, "GET /") && absl::EndsWith(line, " HTTP/1.1");
    Expect(!whole, "a whole head gets a response", bytes);
    return;
  }
  CheckResponse(ParseResponse(text), !requests.empty(), bytes);
}

}  // namespace
}  // namespace normd::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  normd::testing::Script script(data, size);
  const std::size_t meet = std::size_t{script.Byte()} * 2;
  normd::testing::Try(script.Rest(), std::min(meet, script.Rest().size()));
  return 0;
}
