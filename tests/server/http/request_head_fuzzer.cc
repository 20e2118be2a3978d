// The head of a request to the metrics port, as it comes in one part and in two; the first byte of
// the input says where these meet. http_fuzzer plays the same over sockets, far fewer of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "boost/asio/buffer.hpp"
#include "boost/asio/error.hpp"
#include "boost/beast/http.hpp"
#include "server/http/request_head.h"
#include "tests/fuzz/expect.h"
#include "tests/server/http/check_request.h"

namespace normd {
namespace {

using testing::Expect;
using ErrorCode = boost::system::error_code;

constexpr std::size_t kMaxHeadBytes = 512;

// A connection whose client sends two parts and then ends its side.
class Parts {
 public:
  Parts(absl::string_view first, absl::string_view second) : first_(first), second_(second) {}

  template <class Buffers>
  std::size_t read_some(const Buffers& buffers, ErrorCode& error) {
    if (first_.empty()) first_ = std::exchange(second_, {});
    if (first_.empty()) error = boost::asio::error::eof;
    const std::size_t taken =
        boost::asio::buffer_copy(buffers, boost::asio::buffer(first_.data(), first_.size()));
    first_.remove_prefix(taken);
    return taken;
  }
  template <class Buffers>
  std::size_t read_some(const Buffers& buffers) {
    ErrorCode error;
    const std::size_t taken = read_some(buffers, error);
    if (error) throw boost::system::system_error(error);
    return taken;
  }

 private:
  absl::string_view first_;
  absl::string_view second_;
};

RequestHead::Outcome Read(absl::string_view first, absl::string_view second) {
  RequestHead head(kMaxHeadBytes);
  Parts parts(first, second);
  ErrorCode error;
  const std::size_t read =
      boost::beast::http::read_header(parts, head.buffer(), head.parser(), error);
  return head.Read(error, read);
}

void Try(absl::string_view bytes, std::size_t meet) {
  const RequestHead::Outcome outcome = Read(bytes, {});
  Expect(outcome.refusal == 0 || !outcome.request.has_value(), "either", bytes);
  static constexpr int kRefusals[] = {0, 400, 405, 431};
  Expect(std::count(std::begin(kRefusals), std::end(kRefusals), outcome.refusal) == 1,
         "a refusal that clients are told of", absl::StrCat(outcome.refusal));
  if (outcome.request.has_value()) {
    testing::CheckRequest(*outcome.request, bytes);
    Expect(bytes.find("\r\n\r\n") + 4 <= kMaxHeadBytes, "no longer than it may be", bytes);
    Expect(outcome.head_only == absl::StartsWith(bytes, "HEAD "), "HEAD is HEAD", bytes);
  }
  const RequestHead::Outcome cut = Read(bytes.substr(0, meet), bytes.substr(meet));
  Expect(
      cut.request.has_value() == outcome.request.has_value() && cut.head_only == outcome.head_only,
      "it matters not how the bytes come", bytes);
  if (!cut.request.has_value()) return;
  Expect(cut.request->path == outcome.request->path &&
             cut.request->accepts_gzip == outcome.request->accepts_gzip &&
             cut.request->authorization == outcome.request->authorization,
         "it matters not how the bytes come", bytes);
}

}  // namespace
}  // namespace normd

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  normd::testing::Script script(data, size);
  const std::size_t meet = std::size_t{script.Byte()} * 2;
  normd::Try(script.Rest(), std::min(meet, script.Rest().size()));
  return 0;
}
