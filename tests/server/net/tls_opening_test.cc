#include "server/net/tls_opening.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace normd {
namespace {

using TlsState = TlsOpening::State;
using ::testing::HasSubstr;

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
