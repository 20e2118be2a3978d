#include "server/net/http2_opening.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "server/net/tls_opening.h"

namespace normd {
namespace {

using ::testing::HasSubstr;
using H2State = Http2Opening::State;
using TlsState = TlsOpening::State;

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frame(int type, int flags, std::size_t size) {
  std::string frame;
  for (const std::size_t byte : {size >> 16, size >> 8, size, std::size_t(type), std::size_t(flags),
                                 std::size_t{0}, std::size_t{0}, std::size_t{0}, std::size_t{0}}) {
    frame.push_back(static_cast<char>(byte & 0xff));
  }
  return frame + std::string(size, 'x');
}

const std::string kSettings = Frame(4, 0, 6);
const std::string kAckFrame = Frame(4, 1, 0);

struct Outcome {
  H2State state;
  std::string taken;
};

// Gives `bytes` as a socket would: at each step up to `step` more are there, and what was not taken
// is given again.
Outcome Feed(const std::string& bytes, std::size_t step, Http2OpeningLimits limits = {}) {
  Http2Opening opening(limits);
  std::size_t taken = 0;
  for (std::size_t there = 0; there < bytes.size();) {
    there = std::min(bytes.size(), there + step);
    taken += opening.Take(absl::string_view(bytes).substr(taken, there - taken));
    EXPECT_LE(taken, there);
  }
  return {opening.state(), bytes.substr(0, taken)};
}

TEST(Http2OpeningTest, LeavesTheAcknowledgementHoweverBytesCome) {
  const std::string before = kPreface + kSettings + Frame(8, 0, 4) + Frame(1, 4, 100) +
                             Frame(0, 1, 16384) + Frame(0, 0, 0) + Frame(6, 0, 8);
  const std::string after = kAckFrame + Frame(1, 4, 50);
  for (std::size_t step = 1; step < 100; ++step) {
    const Outcome outcome = Feed(before + after, step);
    EXPECT_EQ(outcome.state, H2State::kAcknowledged) << step;
    EXPECT_EQ(outcome.taken, before) << step;
  }
  EXPECT_EQ(Feed(before + after, 1 << 20).taken, before);
}

TEST(Http2OpeningTest, WaitsForTheAcknowledgement) {
  for (const std::string& bytes :
       {kPreface + kSettings, kPreface + kSettings + kAckFrame.substr(0, 8),
        kPreface + kSettings + Frame(1, 4, 10) + Frame(0, 0, 10)}) {
    EXPECT_EQ(Feed(bytes, 7).state, H2State::kSettings);
  }
  EXPECT_EQ(Feed(kPreface.substr(0, 23), 5).state, H2State::kPreface);
}

TEST(Http2OpeningTest, TakesAllThatAClientMaySendUnasked) {
  std::string bytes = kPreface + kSettings;
  for (int call = 0; call < 100; ++call) bytes += Frame(1, 4, 200);
  for (int i = 0; i < 4; ++i) bytes += Frame(0, 0, 16383);
  EXPECT_EQ(Feed(bytes + kAckFrame, 4096).state, H2State::kAcknowledged);
}

TEST(Http2OpeningTest, RefusesWhatExceedsALimit) {
  Http2OpeningLimits limits;
  limits.max_calls = 5;
  limits.max_header_bytes = 1000;
  limits.max_bytes = 5000;
  limits.max_frames = 20;
  const auto times = [](int count, const std::string& frame) {
    std::string bytes = kPreface + kSettings;
    for (int i = 0; i < count; ++i) bytes += frame;
    return bytes;
  };
  EXPECT_EQ(Feed(times(5, Frame(1, 4, 10)), 9, limits).state, H2State::kSettings);
  EXPECT_EQ(Feed(times(6, Frame(1, 4, 10)), 9, limits).state, H2State::kViolation);
  EXPECT_EQ(Feed(times(3, Frame(9, 0, 400)), 9, limits).state, H2State::kViolation);
  EXPECT_EQ(Feed(times(3, Frame(0, 0, 2000)), 9, limits).state, H2State::kViolation);
  EXPECT_EQ(Feed(times(19, Frame(6, 0, 8)), 9, limits).state, H2State::kSettings);
  EXPECT_EQ(Feed(times(20, Frame(6, 0, 8)), 9, limits).state, H2State::kViolation);
}

TEST(Http2OpeningTest, TellsOtherProtocolsApart) {
  for (const char* http1 : {"GET / HTTP/1.1\r\n", "POST /x HTTP/1.1\r\n", "PUT / HTTP/1.0\r\n",
                            "PRI * HTTP/1.1\r\n\r\n", "OPTIONS * HTTP/1.1\r\n"}) {
    EXPECT_EQ(Feed(http1, 1 << 10).state, H2State::kHttp1) << http1;
  }
  EXPECT_EQ(Feed("\x16\x03\x01\x02", 4).state, H2State::kTls);
  EXPECT_EQ(Feed(std::string(100, '\0'), 100).state, H2State::kViolation);
  EXPECT_EQ(Feed(kPreface + kAckFrame, 100).state, H2State::kViolation);
  EXPECT_EQ(Feed(kPreface + Frame(1, 4, 10), 100).state, H2State::kViolation);
  EXPECT_EQ(Feed(kPreface + Frame(4, 0, 16385), 100).state, H2State::kViolation);
}

TEST(Http2OpeningTest, NeverTakesMoreThanItWasGivenOrGoesOnAfterTheEnd) {
  std::mt19937 random(20261122);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = kPreface + kSettings;
    while (bytes.size() < 400) {
      bytes +=
          Frame(static_cast<int>(random() % 12), static_cast<int>(random() % 8), random() % 60);
    }
    bytes[random() % bytes.size()] = static_cast<char>(random());
    const Outcome whole = Feed(bytes, 1 << 20);
    const Outcome parts = Feed(bytes, 1 + random() % 40);
    EXPECT_EQ(whole.state, parts.state);
    if (whole.state == H2State::kAcknowledged) {
      EXPECT_EQ(whole.taken, parts.taken);
    }
  }
}

TEST(Http2OpeningTest, SettingsAreAFrameOfTwoValues) {
  const std::string frame = Http2Settings(8, 8192);
  EXPECT_EQ(frame, std::string("\0\0\x0c\x04\0\0\0\0\0"
                               "\0\x03\0\0\0\x08"
                               "\0\x06\0\0\x20\0",
                               21));
}

// What OpenSSL's client sends first, when it offers the versions `from` to `to`.
std::string Hello(int from, int to, const std::string& protocol = "") {
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_security_level(context, 0);
  SSL_CTX_set_min_proto_version(context, from);
  SSL_CTX_set_max_proto_version(context, to);
  SSL* client = SSL_new(context);
  SSL_set_tlsext_host_name(client, "normd.test");
  if (!protocol.empty()) {
    SSL_set_alpn_protos(client, reinterpret_cast<const unsigned char*>(protocol.data()),
                        static_cast<unsigned>(protocol.size()));
  }
  BIO* out = BIO_new(BIO_s_mem());
  SSL_set_bio(client, BIO_new(BIO_s_mem()), out);
  SSL_connect(client);
  char* data = nullptr;
  const long size = BIO_get_mem_data(out, &data);
  const std::string bytes(data, static_cast<std::size_t>(size));
  SSL_free(client);
  SSL_CTX_free(context);
  return bytes;
}

std::string Record(const std::string& part) {
  return std::string("\x16\x03\x01", 3) + static_cast<char>(part.size() >> 8) +
         static_cast<char>(part.size()) + part;
}

// The same hello in records of at most `size` bytes.
std::string Cut(const std::string& hello, std::size_t size) {
  std::string message;
  for (std::size_t at = 0; at < hello.size();) {
    const std::size_t part =
        static_cast<std::uint8_t>(hello[at + 3]) << 8 | static_cast<std::uint8_t>(hello[at + 4]);
    message += hello.substr(at + 5, part);
    at += 5 + part;
  }
  std::string cut;
  for (std::size_t at = 0; at < message.size(); at += size) cut += Record(message.substr(at, size));
  return cut;
}

TlsState StateOf(const std::string& bytes, std::uint16_t min_version = kTls12) {
  return JudgeTlsOpening(bytes, min_version).state;
}

TEST(TlsOpeningTest, TakesAHelloOfEveryVersionThatIsNewEnough) {
  const int versions[] = {TLS1_VERSION, TLS1_1_VERSION, TLS1_2_VERSION, TLS1_3_VERSION};
  for (const int from : versions) {
    for (const int to : versions) {
      if (from > to) continue;
      const std::string hello = Hello(from, to);
      ASSERT_GT(hello.size(), 40u);
      EXPECT_EQ(StateOf(hello, kTls12),
                to >= TLS1_2_VERSION ? TlsState::kHello : TlsState::kOldVersion);
      EXPECT_EQ(StateOf(hello, kTls13),
                to >= TLS1_3_VERSION ? TlsState::kHello : TlsState::kOldVersion);
    }
  }
  EXPECT_THAT(JudgeTlsOpening(Hello(TLS1_VERSION, TLS1_1_VERSION), kTls12).error,
              HasSubstr("TLS 1.1, wanted TLS 1.2 or newer"));
  EXPECT_EQ(JudgeTlsOpening(Hello(TLS1_2_VERSION, TLS1_2_VERSION), kTls13).error,
            "TLS 1.2, wanted TLS 1.3");
}

TEST(TlsOpeningTest, WaitsForTheLastByteHoweverTheHelloIsCut) {
  const std::string hello = Hello(TLS1_2_VERSION, TLS1_3_VERSION, std::string("\x02h2", 3));
  for (const std::size_t size : {1, 2, 3, 4, 5, 37, 100, 1000}) {
    const std::string cut = Cut(hello, size);
    for (std::size_t end = 0; end < cut.size(); ++end) {
      ASSERT_EQ(StateOf(cut.substr(0, end)), TlsState::kIncomplete) << size << " " << end;
    }
    EXPECT_EQ(StateOf(cut), TlsState::kHello);
    EXPECT_EQ(StateOf(cut + "what follows"), TlsState::kHello);
  }
}

TEST(TlsOpeningTest, KnowsWhatSpeaksWithoutTls) {
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  EXPECT_EQ(StateOf(preface), TlsState::kPlainHttp2);
  EXPECT_THAT(JudgeTlsOpening(preface, kTls12).error, HasSubstr("HTTP/2 without TLS"));
  EXPECT_EQ(StateOf("GET / HTTP/1.1\r\n"), TlsState::kHttp1);
  EXPECT_EQ(StateOf("PRINT / HTTP/1.1\r\n"), TlsState::kHttp1);
  EXPECT_EQ(StateOf("PRI / HTTP/1.1\r\n"), TlsState::kHttp1);
  for (const char* part : {"", "P", "PR", "PRI", "PRI *", "G", "OPTIONS"}) {
    EXPECT_EQ(StateOf(part), TlsState::kIncomplete) << part;
  }
  for (const char* other :
       {"get / ", "\x80\x2e\x01\x03\x01", "GE\n", "\x15\x03\x01", "AAAAAAAAAAAAAAAAAAAAAAAA"}) {
    EXPECT_EQ(StateOf(other), TlsState::kViolation) << other;
  }
}

TEST(TlsOpeningTest, EndsWhatNeverBecomesAHello) {
  // Sizes that are claimed are not waited for beyond the bound.
  EXPECT_EQ(StateOf(std::string("\x16\x03\x01\x00\x04\x01\xff\xff\xff", 9)), TlsState::kViolation);
  EXPECT_EQ(StateOf(std::string("\x16\x03\x01\x00\x04\x01\x00\x40\x00", 9)), TlsState::kViolation);
  // Neither are heads of records without end.
  std::string endless = Record("\x01");
  while (endless.size() < kMaxHelloBytes) endless += Record(std::string(1, '\0'));
  EXPECT_NE(StateOf(endless.substr(0, kMaxHelloBytes)), TlsState::kIncomplete);
  std::string slow = Record(std::string("\x01\x00\x20\x00", 4));  // 8 KiB, a byte in each record.
  while (slow.size() < kMaxHelloBytes) slow += Record(std::string(1, 'x'));
  EXPECT_EQ(StateOf(slow.substr(0, kMaxHelloBytes)), TlsState::kViolation);
  EXPECT_EQ(StateOf(std::string("\x16\x03\x01\x00\x00", 5)), TlsState::kViolation);  // Empty.
  EXPECT_EQ(StateOf(Record(std::string("\x02\x00\x00\x00", 4))), TlsState::kViolation);
  EXPECT_EQ(StateOf(Record("\x01") + "\x15\x03\x01"), TlsState::kIncomplete);
  EXPECT_EQ(StateOf(Record("\x01") + std::string("\x15\x03\x01\x00\x01", 5)), TlsState::kViolation);
}

// Damage anywhere ends in one of the states, without reading beyond the bytes (the sanitizers
// look), and a final state stays whatever follows.
TEST(TlsOpeningTest, HasAFinalStateForEveryDamage) {
  std::mt19937 random(20261122);
  const std::string hello = Hello(TLS1_2_VERSION, TLS1_3_VERSION);
  int finals = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = random() % 2 == 0 ? hello : Cut(hello, 1 + random() % 200);
    for (auto times = 1 + random() % 4; times > 0; --times) {
      bytes[random() % std::min<std::size_t>(bytes.size(), 1 + random() % 400)] =
          static_cast<char>(random());
    }
    bytes.resize(bytes.size() - random() % 3);
    const std::vector<char> exact(bytes.begin(), bytes.end());
    const TlsState state =
        JudgeTlsOpening(absl::string_view(exact.data(), exact.size()), kTls12).state;
    if (state == TlsState::kIncomplete) continue;
    ++finals;
    EXPECT_EQ(StateOf(bytes + std::string(random() % 50, 'x')), state);
  }
  EXPECT_GT(finals, 1000);
}

TEST(TlsOpeningTest, TellsEachPeerInItsOwnProtocol) {
  EXPECT_THAT(TlsRefusal(TlsState::kHttp1), HasSubstr("HTTP/1.1 400 Bad Request"));
  EXPECT_EQ(TlsRefusal(TlsState::kOldVersion).substr(5), std::string("\x02\x46"));
  EXPECT_EQ(TlsRefusal(TlsState::kViolation).substr(5), std::string("\x02\x28"));
  EXPECT_EQ(TlsRefusal(TlsState::kPlainHttp2), "");
}

}  // namespace
}  // namespace normd
