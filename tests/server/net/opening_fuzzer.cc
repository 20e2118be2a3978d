// How a connection of the gRPC port begins. A first byte that is even: HTTP/2's preface and frames,
// cut into pieces as a socket may give them. Odd: TLS's hello, held against OpenSSL, which is what
// reads it next.

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/net/http2_opening.h"
#include "server/net/tls_opening.h"
#include "tests/fuzz/expect.h"

namespace normd::testing {
namespace {

struct Outcome {
  Http2Opening::State state;
  std::string error;
  std::size_t taken;
};

// Gives `bytes` as a socket would: at each step up to `step` more are there, and what was not taken
// is given again.
Outcome Feed(absl::string_view bytes, std::size_t step, const Http2OpeningLimits& limits) {
  Http2Opening opening(limits);
  std::size_t taken = 0;
  for (std::size_t there = 0; there < bytes.size();) {
    there = std::min(bytes.size(), there + step);
    taken += opening.Take(bytes.substr(taken, there - taken));
    Expect(taken <= there, "no more is taken than there is");
  }
  return {opening.state(), opening.error(), taken};
}

// A second count of what comes before the acknowledgement: one frame after the other.
bool WithinLimits(absl::string_view frames, const Http2OpeningLimits& limits) {
  constexpr std::size_t kHead = 9;
  std::int64_t calls = 0;
  std::int64_t header_bytes = 0;
  std::int64_t count = 0;
  std::size_t at = 0;
  while (at + kHead <= frames.size()) {
    const auto byte = [&](std::size_t i) {
      return static_cast<std::size_t>(static_cast<std::uint8_t>(frames[at + i]));
    };
    const std::size_t size = byte(0) << 16 | byte(1) << 8 | byte(2);
    if (size > 16384) return false;
    calls += byte(3) == 1 ? 1 : 0;
    header_bytes += byte(3) == 1 || byte(3) == 9 ? static_cast<std::int64_t>(size) : 0;
    ++count;
    at += kHead + size;
  }
  return calls <= limits.max_calls && header_bytes <= limits.max_header_bytes &&
         count <= limits.max_frames && static_cast<std::int64_t>(at) <= limits.max_bytes;
}

void TryHttp2(absl::string_view bytes, std::size_t step) {
  using State = Http2Opening::State;
  constexpr absl::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const Http2OpeningLimits limits{
      .max_calls = 3, .max_header_bytes = 64, .max_bytes = 500, .max_frames = 8};
  const Outcome whole = Feed(bytes, bytes.size() + 1, limits);
  const Outcome parts = Feed(bytes, step, limits);
  Expect(
      whole.error.empty() == (whole.state == State::kPreface || whole.state == State::kSettings ||
                              whole.state == State::kAcknowledged),
      "an error where there is one");
  if (!whole.error.empty()) ExpectMessage(whole.error, 200);
  const bool began = whole.state == State::kSettings || whole.state == State::kAcknowledged;
  Expect(began == (parts.state == State::kSettings || parts.state == State::kAcknowledged),
         "it matters not how bytes are cut");
  if (!began) return;
  Expect(whole.state == parts.state && whole.taken == parts.taken,
         "it matters not how bytes are cut");
  Expect(bytes.substr(0, kPreface.size()) == kPreface, "after the preface");
  const absl::string_view frames = bytes.substr(kPreface.size(), whole.taken - kPreface.size());
  Expect(WithinLimits(frames, limits), "within the limits");
  if (whole.state != State::kAcknowledged) return;
  const absl::string_view next = bytes.substr(whole.taken);
  Expect(next.size() >= 9 && next[3] == 4 && (next[4] & 1) != 0,
         "the acknowledgement is the next that is to be read");
}

// What OpenSSL makes of `bytes`, without a key: which version it would speak, as far as it got.
struct Negotiated {
  bool hello = false;  // It has read a whole client's hello, and is ready to go on with it.
  int version = 0;     // The one that it has chosen; 0: it did not come to that.
};

class Judge {
 public:
  explicit Judge(int min_version) : context_(SSL_CTX_new(TLS_server_method()), SSL_CTX_free) {
    SSL_CTX_set_min_proto_version(context_.get(), min_version);
    SSL_CTX_set_security_level(context_.get(), 0);
    SSL_CTX_set_client_hello_cb(context_.get(), OnHello, nullptr);
    // Asked once the version is chosen; refuses, since that is all that is to be known.
    SSL_CTX_set_cert_cb(context_.get(), OnCertificate, nullptr);
  }

  Negotiated Read(absl::string_view bytes) const {
    Negotiated negotiated;
    const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context_.get()), SSL_free);
    SSL_set_app_data(ssl.get(), &negotiated);
    BIO* const in = BIO_new(BIO_s_mem());
    BIO_write(in, bytes.data(), static_cast<int>(bytes.size()));
    BIO_set_mem_eof_return(in, -1);  // More may come.
    SSL_set_bio(ssl.get(), in, BIO_new(BIO_s_mem()));
    SSL_accept(ssl.get());
    ERR_clear_error();
    return negotiated;
  }

 private:
  static int OnHello(SSL* ssl, int*, void*) {
    static_cast<Negotiated*>(SSL_get_app_data(ssl))->hello = true;
    return SSL_CLIENT_HELLO_SUCCESS;
  }
  static int OnCertificate(SSL* ssl, void*) {
    static_cast<Negotiated*>(SSL_get_app_data(ssl))->version = SSL_version(ssl);
    return 0;
  }

  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
};

void TryTls(absl::string_view bytes, bool only_tls13, std::size_t cut) {
  using State = TlsOpening::State;
  static const Judge any(TLS1_VERSION);
  const std::uint16_t min_version = only_tls13 ? kTls13 : kTls12;
  const TlsOpening opening = JudgeTlsOpening(bytes, min_version);
  const bool good = opening.state == State::kIncomplete || opening.state == State::kHello;
  Expect(opening.error.empty() == good, "an error where there is one");
  if (!good) ExpectMessage(opening.error, 200);
  // As more comes, it is judged once.
  const State before = JudgeTlsOpening(bytes.substr(0, cut), min_version).state;
  Expect(before == State::kIncomplete || before == opening.state, "what is judged stays so");
  Expect(opening.state != State::kIncomplete || bytes.size() < kMaxHelloBytes,
         "nothing is waited for without end");

  // OpenSSL is left with the choice of the version, so a hello that gets past must not make it
  // choose an older one; and it must be whole, since nobody else waits for the rest.
  if (opening.state != State::kHello && opening.state != State::kOldVersion) return;
  const Negotiated negotiated = any.Read(bytes);
  if (negotiated.version == 0) return;
  Expect(negotiated.hello, "a version is chosen after a hello");
  Expect((negotiated.version >= min_version) == (opening.state == State::kHello),
         "OpenSSL would choose a version that is new enough",
         absl::StrCat(negotiated.version, " ", opening.error));
}

}  // namespace
}  // namespace normd::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  normd::testing::Script script(data, size);
  const std::uint8_t first = script.Byte();
  const std::size_t cut = std::size_t{script.Byte()} + 1;
  if (first % 2 == 0) {
    normd::testing::TryHttp2(script.Rest(), cut);
  } else {
    normd::testing::TryTls(script.Rest(), first / 2 % 2 == 0, cut);
  }
  return 0;
}
