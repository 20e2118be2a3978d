#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "server/http/http_server.h"
#include "server/tls/tls_context.h"
#include "tests/server/http/http_peer.h"
#include "tests/support/certificates.h"

namespace normd::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::StartsWith;

constexpr std::size_t kBigBytes = std::size_t{8} << 20;  // More than the kernel takes.
constexpr char kAsk[] = "GET /big HTTP/1.1\r\n\r\n";

// One connection of a client with OpenSSL, which blocks.
class TlsPeer {
 public:
  // Shows a certificate if `pki` is not null.
  explicit TlsPeer(int port, const TestPki* pki = nullptr)
      : context_(SSL_CTX_new(TLS_client_method())), fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<in_port_t>(port));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    ssl_ = SSL_new(context_);
    if (pki != nullptr) Show(*pki);
    SSL_set_fd(ssl_, fd_);
  }
  ~TlsPeer() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
    close(fd_);
  }
  TlsPeer(const TlsPeer&) = delete;
  TlsPeer& operator=(const TlsPeer&) = delete;

  bool Shake() { return SSL_connect(ssl_) == 1; }
  bool Send(const std::string& text) {
    return SSL_write(ssl_, text.data(), static_cast<int>(text.size())) ==
           static_cast<int>(text.size());
  }
  // All that comes until the server's end in TLS; `whole` tells whether that came.
  std::string ReadAll(bool& whole) {
    std::string all;
    std::vector<char> part(1 << 16);
    int got = 0;
    while ((got = SSL_read(ssl_, part.data(), static_cast<int>(part.size()))) > 0) {
      all.append(part.data(), static_cast<std::size_t>(got));
    }
    whole = SSL_get_error(ssl_, got) == SSL_ERROR_ZERO_RETURN;
    return all;
  }
  // The subject of the server's certificate.
  std::string Shown() const {
    X509* certificate = SSL_get1_peer_certificate(ssl_);
    char name[256] = "";
    X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name,
                              sizeof(name));
    X509_free(certificate);
    return name;
  }
  void WaitClosed() const {
    char buffer[4096];
    while (recv(fd_, buffer, sizeof(buffer), 0) > 0) {
    }
  }

 private:
  void Show(const TestPki& pki) {
    BIO* text = BIO_new_mem_buf(pki.client.certificate.data(), -1);
    X509* certificate = PEM_read_bio_X509(text, nullptr, nullptr, nullptr);
    SSL_use_certificate(ssl_, certificate);
    X509_free(certificate);
    BIO_free(text);
    text = BIO_new_mem_buf(pki.client.key.data(), -1);
    EVP_PKEY* key = PEM_read_bio_PrivateKey(text, nullptr, nullptr, nullptr);
    SSL_use_PrivateKey(ssl_, key);
    EVP_PKEY_free(key);
    BIO_free(text);
  }

  SSL_CTX* const context_;
  const int fd_;
  SSL* ssl_ = nullptr;
};

class HttpTlsTest : public ::testing::Test {
 protected:
  void Start(HttpServerOptions options = {}, ClientAuth auth = ClientAuth::kNone) {
    Use(pki_.server, auth);
    options.tls = [this] { return context_; };
    auto server =
        HttpServer::Start("127.0.0.1:0", options, [](const HttpRequest&, HttpServer::Respond to) {
          to({200, "text/plain", false, std::make_shared<std::string>(kBigBytes, 'x')});
        });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  // From the next connection on; only while none begins.
  void Use(const TestCertificate& server, ClientAuth auth) {
    auto context = MakeTlsContext(
        {server.certificate, server.key, pki_.authority.certificate, absl::InfiniteFuture()},
        {.client_auth = auth});
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
  }
  int port() const { return server_->port(); }
  // That the server answers, whole.
  void ExpectServed(const TestPki* pki = nullptr) {
    TlsPeer peer(port(), pki);
    ASSERT_TRUE(peer.Shake());
    ASSERT_TRUE(peer.Send(kAsk));
    bool whole = false;
    const std::string text = peer.ReadAll(whole);
    EXPECT_THAT(text, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_TRUE(absl::EndsWith(text, std::string(kBigBytes, 'x')));
    EXPECT_TRUE(whole);
  }

  const TestPki pki_ = {};
  const TestPki other_ = {};
  std::shared_ptr<SSL_CTX> context_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTlsTest, GivesAWholeResponseAndItsEnd) {
  Start();
  for (int i = 0; i < 3; ++i) ExpectServed();
}

TEST_F(HttpTlsTest, EachConnectionBeginsWithTheCertificateOfItsMoment) {
  Start();
  TlsPeer before(port());
  ASSERT_TRUE(before.Shake());
  Use(MakeCertificate({.name = "the next"}, &pki_.authority), ClientAuth::kNone);
  TlsPeer after(port());
  ASSERT_TRUE(after.Shake());
  EXPECT_EQ(before.Shown(), "normd test");
  EXPECT_EQ(after.Shown(), "the next");
  // A connection that began with the old one keeps it.
  bool whole = false;
  ASSERT_TRUE(before.Send(kAsk));
  EXPECT_GT(before.ReadAll(whole).size(), kBigBytes);
  EXPECT_TRUE(whole);
}

TEST_F(HttpTlsTest, AsksForCertificatesAsItsPolicySays) {
  for (const ClientAuth auth : {ClientAuth::kNone, ClientAuth::kAllow, ClientAuth::kRequire}) {
    Start({}, auth);
    ExpectServed(&pki_);
    for (const TestPki* pki : {static_cast<const TestPki*>(nullptr), &other_}) {
      const bool taken =
          auth == ClientAuth::kNone || (pki == nullptr && auth == ClientAuth::kAllow);
      if (taken) {
        ExpectServed(pki);
        continue;
      }
      // With TLS 1.3 the client learns it when it reads.
      TlsPeer peer(port(), pki);
      bool whole = false;
      EXPECT_FALSE(peer.Shake() && peer.Send(kAsk) && !peer.ReadAll(whole).empty());
    }
  }
}

TEST_F(HttpTlsTest, WhoDoesNotSpeakItGetsNothing) {
  Start();
  EXPECT_EQ(HttpGet(port(), "/big").find("HTTP/1.1 200"), std::string::npos);
  ExpectServed();
}

// Handshakes that never end hold up nobody, and end.
TEST_F(HttpTlsTest, GivesUpHandshakesAndResponsesThatTakeTooLong) {
  HttpServerOptions options;
  options.timeout = milliseconds(300);
  Start(options);
  const HttpPeer silent(port());
  HttpPeer half(port());
  ASSERT_TRUE(half.Send("\x16\x03\x01"));
  TlsPeer quiet(port());  // Shakes hands and asks for nothing.
  ASSERT_TRUE(quiet.Shake());
  TlsPeer greedy(port());  // Asks, and takes nothing.
  ASSERT_TRUE(greedy.Shake());
  ASSERT_TRUE(greedy.Send(kAsk));
  silent.WaitClosed();
  half.WaitClosed();
  quiet.WaitClosed();
  while (server_->stats().timeouts < 4) std::this_thread::yield();
  ExpectServed();
  while (server_->stats().connections > 0) std::this_thread::yield();
}

TEST_F(HttpTlsTest, WhoShakesHandsMakesRoomForANewcomer) {
  HttpServerOptions options;
  options.connections = {4, 4};
  Start(options);
  std::vector<std::unique_ptr<HttpPeer>> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(std::make_unique<HttpPeer>(port()));
  ExpectServed();
  EXPECT_GE(server_->stats().evictions, 16);
}

TEST_F(HttpTlsTest, EndsInTheMidstOfEverything) {
  for (int i = 0; i < 10; ++i) {
    Start();
    HttpPeer half(port());
    half.Send("\x16\x03\x01");
    TlsPeer shaken(port());
    ASSERT_TRUE(shaken.Shake());
    TlsPeer asked(port());
    ASSERT_TRUE(asked.Shake());
    ASSERT_TRUE(asked.Send(kAsk));
    server_.reset();
    half.WaitClosed();
    shaken.WaitClosed();
    asked.WaitClosed();
  }
}

}  // namespace
}  // namespace normd::testing
