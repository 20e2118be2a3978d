#include "server/net/connection_loop.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "server/net/socket_calls.h"
#include "server/net/tls_opening.h"
#include "tests/support/counting_metrics.h"

namespace normd {
namespace {

const std::string kHello =
    std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string("\0\0\0\x04\0\0\0\0\0", 9);
const std::string kAck("\0\0\0\x04\x01\0\0\0\0", 9);
// As an owner of the connection sends them: longer than nothing.
const std::string kOwnSettings(40, 's');

constexpr int kWaitMillis = 20000;

class Client {
 public:
  explicit Client(int port, const char* source = "127.0.0.1", int source_port = 0)
      : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    // Two connections may come from one port if they go to two.
    setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in from = {};
    from.sin_family = AF_INET;
    from.sin_port = htons(static_cast<in_port_t>(source_port));
    inet_pton(AF_INET, source, &from.sin_addr);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&from), sizeof(from)), 0);
    sockaddr_in to = from;
    to.sin_port = htons(static_cast<in_port_t>(port));
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  void Send(const std::string& bytes) {
    (void)!send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  std::string Read(std::size_t size) {
    std::string bytes(size, '\0');
    const ssize_t got = recv(socket_.get(), bytes.data(), size, MSG_WAITALL);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }
  // Blocks until the other side has closed, or data is there.
  bool Closed() {
    char byte;
    return recv(socket_.get(), &byte, 1, 0) <= 0;
  }
  void Close() { socket_.Reset(); }
  int source_port() const {
    sockaddr_in address = {};
    socklen_t size = sizeof(address);
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.sin_port);
  }

 private:
  Descriptor socket_;
};

struct Taken {
  Descriptor socket;
  std::string first_bytes;
};

bool Readable(const Descriptor& socket, int millis) {
  pollfd poll_for = {socket.get(), POLLIN, 0};
  return poll(&poll_for, 1, millis) == 1;
}

class ConnectionLoopTest : public ::testing::Test {
 protected:
  void Start(ConnectionLoopOptions options) {
    auto listener = Listen("127.0.0.1:0");
    auto second = Listen("127.0.0.1:0");
    ASSERT_TRUE(listener.ok() && second.ok());
    port_ = listener->port;
    second_port_ = second->port;
    listener->sockets.push_back(std::move(second->sockets[0]));
    auto admin = Listen("127.0.0.1:0");
    ASSERT_TRUE(admin.ok());
    admin_port_ = admin->port;
    listener->admin_sockets = admin->sockets.size();
    for (Descriptor& socket : admin->sockets) listener->sockets.push_back(std::move(socket));
    ConnectionLoop::Callbacks callbacks;
    callbacks.take = [this](int socket, std::string first_bytes) {
      MutexLock lock(mutex_);
      taken_.push_back({Descriptor(socket), std::move(first_bytes)});
      changed_.SignalAll();
      while (owner_is_slow_) changed_.Wait(mutex_);
    };
    callbacks.on_room = [this](bool room) {
      MutexLock lock(mutex_);
      rooms_.push_back(room);
      changed_.SignalAll();
    };
    callbacks.streams_of = [this](const std::string& peer) {
      EXPECT_EQ(peer.substr(0, 15), "ipv4:127.0.0.1:");
      ++counts_;
      return streams_.load();
    };
    loop_ = std::make_unique<ConnectionLoop>(options, *std::move(listener), std::move(callbacks),
                                             callers_, metrics_);
  }
  static ConnectionLoopOptions Options() {
    ConnectionLoopOptions options;
    options.limits = {100, 100};
    options.traffic.connection_bytes = 1 << 20;
    return options;
  }
  Taken Take() {
    MutexLock lock(mutex_);
    while (taken_.empty()) changed_.Wait(mutex_);
    Taken taken = std::move(taken_.front());
    taken_.pop_front();
    return taken;
  }
  // While it is slow it comes back from no taking.
  void SetOwnerSlow(bool slow) {
    MutexLock lock(mutex_);
    owner_is_slow_ = slow;
    changed_.SignalAll();
  }
  bool NothingTaken() {
    MutexLock lock(mutex_);
    return taken_.empty();
  }
  bool NextRoom() {
    MutexLock lock(mutex_);
    while (rooms_.empty()) changed_.Wait(mutex_);
    const bool room = rooms_.front();
    rooms_.pop_front();
    return room;
  }
  void WaitOpen(std::int64_t connections) {
    while (metrics_.open != connections) std::this_thread::yield();
  }
  // A connection that serves, with the owner's settings sent.
  Taken Serve(Client& client) {
    client.Send(kHello + kAck);
    Taken taken = Take();
    (void)!send(taken.socket.get(), kOwnSettings.data(), kOwnSettings.size(), 0);
    EXPECT_TRUE(Readable(taken.socket, kWaitMillis));
    return taken;
  }

  std::string NameOf(const Client& client) const {
    return "ipv4:127.0.0.1:" + std::to_string(client.source_port());
  }

  int port_ = 0;
  int second_port_ = 0;
  int admin_port_ = 0;
  CountingConnectionMetrics metrics_;
  Callers callers_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Taken> taken_ ABSL_GUARDED_BY(mutex_);
  std::atomic<std::int64_t> streams_{0};
  std::atomic<int> counts_{0};
  bool owner_is_slow_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<bool> rooms_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ConnectionLoop> loop_;
};

TEST_F(ConnectionLoopTest, HandsOnWithTheAcknowledgementNext) {
  Start(Options());
  Client client(port_);
  client.Send(kHello);
  EXPECT_EQ(client.Read(21), Http2Settings(100, 8192));
  client.Send(kAck + "more");
  Taken taken = Take();
  EXPECT_EQ(taken.first_bytes, kHello);
  (void)!send(taken.socket.get(), kOwnSettings.data(), kOwnSettings.size(), 0);
  ASSERT_TRUE(Readable(taken.socket, kWaitMillis));
  char bytes[64];
  const ssize_t got = recv(taken.socket.get(), bytes, sizeof(bytes), 0);
  EXPECT_EQ(std::string(bytes, static_cast<std::size_t>(got)), kAck + "more");
}

TEST_F(ConnectionLoopTest, NothingIsToBeReadBeforeTheOwnersSettingsHaveLeft) {
  Start(Options());
  for (int round = 0; round < 20; ++round) {
    Client client(port_);
    client.Send(kHello + kAck + std::string(1000, 'd'));
    Taken taken = Take();
    EXPECT_FALSE(Readable(taken.socket, 5));
    (void)!send(taken.socket.get(), kOwnSettings.data(), kOwnSettings.size(), 0);
    EXPECT_TRUE(Readable(taken.socket, kWaitMillis));
  }
}

// All that comes until the end of the connection.
std::string ReadAll(const Descriptor& socket) {
  std::string all;
  char bytes[1 << 16];
  while (Readable(socket, kWaitMillis)) {
    const ssize_t got = recv(socket.get(), bytes, sizeof(bytes), 0);
    if (got <= 0) break;
    all.append(bytes, static_cast<std::size_t>(got));
  }
  return all;
}

// A client's hello, with the newest version that it offers.
std::string TlsHello(std::uint8_t minor = 3) {
  const std::string body = std::string("\x03") + static_cast<char>(minor) + std::string(32, 'r') +
                           std::string("\0\0\x02\x13\x01\x01\0", 7);
  const std::string message = std::string("\x01\0\0", 3) + static_cast<char>(body.size()) + body;
  return std::string("\x16\x03\x01\0", 4) + static_cast<char>(message.size()) + message;
}

TEST_F(ConnectionLoopTest, WithTlsHandsOnTheWholeHelloUnread) {
  ConnectionLoopOptions options = Options();
  options.min_tls_version = kTls12;
  Start(options);
  const std::string hello = TlsHello();
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{5}, hello.size() - 1}) {
    Client client(port_);
    client.Send(hello.substr(0, size));
    // The next one is taken all the same, and this one when it is whole.
    Client next(port_);
    next.Send(hello + "what follows");
    const Taken taken_next = Take();
    EXPECT_EQ(taken_next.first_bytes, "");
    std::string there(hello.size() + 12, '\0');
    EXPECT_EQ(recv(taken_next.socket.get(), there.data(), there.size(), 0),
              static_cast<ssize_t>(there.size()));
    EXPECT_EQ(there, hello + "what follows");
    EXPECT_TRUE(NothingTaken());
    client.Send(hello.substr(size));
    const Taken taken = Take();
    EXPECT_TRUE(Readable(taken.socket, kWaitMillis));
    EXPECT_EQ(recv(taken.socket.get(), there.data(), there.size(), 0),
              static_cast<ssize_t>(hello.size()));
  }
}

TEST_F(ConnectionLoopTest, WithTlsEndsWhatIsNoHello) {
  ConnectionLoopOptions options = Options();
  options.min_tls_version = kTls12;
  options.handshake_timeout = std::chrono::milliseconds(50);
  Start(options);
  const auto ended = [&](ConnectionEnding why) {
    return metrics_.ended[static_cast<std::size_t>(why)].load();
  };
  Client plain(port_);
  plain.Send(kHello + kAck);
  EXPECT_TRUE(plain.Closed());
  EXPECT_EQ(ended(ConnectionEnding::kNoTls), 1);
  Client old(port_);
  old.Send(TlsHello(/*minor=*/2));
  EXPECT_EQ(old.Read(7).substr(5), "\x02\x46");
  EXPECT_TRUE(old.Closed());
  EXPECT_EQ(ended(ConnectionEnding::kOldTls), 1);
  Client half(port_);
  half.Send(TlsHello().substr(0, 20));
  EXPECT_TRUE(half.Closed());
  EXPECT_EQ(ended(ConnectionEnding::kHandshakeTimeout), 1);
  EXPECT_TRUE(NothingTaken());
  WaitOpen(0);
}

// Who has been handed on is watched and ended as without TLS.
TEST_F(ConnectionLoopTest, WithTlsWatchesTheTraffic) {
  ConnectionLoopOptions options = Options();
  options.min_tls_version = kTls12;
  Start(options);
  Client client(port_);
  client.Send(TlsHello());
  Taken taken = Take();
  std::thread sender([&] { client.Send(std::string(std::size_t{8} << 20, 'x')); });
  std::vector<char> buffer(1 << 16);
  while (Readable(taken.socket, kWaitMillis) &&
         recv(taken.socket.get(), buffer.data(), buffer.size(), 0) > 0) {
  }
  taken.socket.Reset();
  sender.join();
  WaitOpen(0);
  EXPECT_EQ(metrics_.ended[static_cast<std::size_t>(ConnectionEnding::kOversize)], 1);
}

// Whoever acknowledges no settings is held to the number of streams all the same.
TEST_F(ConnectionLoopTest, WithTlsEndsAConnectionWithTooManyStreams) {
  ConnectionLoopOptions options = Options();
  options.min_tls_version = kTls12;
  options.max_streams = 100;
  options.traffic.connection_bytes = std::int64_t{1} << 40;
  streams_ = 100;
  Start(options);
  Client client(port_);
  client.Send(TlsHello());
  Taken taken = Take();
  std::vector<char> buffer(1 << 16);
  const auto send_until_counted = [&](int counts) {
    while (counts_ < counts) {
      client.Send(std::string(1 << 10, 'x'));
      (void)!recv(taken.socket.get(), buffer.data(), buffer.size(), 0);
    }
  };
  send_until_counted(2);
  EXPECT_EQ(metrics_.ended[static_cast<std::size_t>(ConnectionEnding::kOversize)], 0);
  streams_ = 101;
  send_until_counted(counts_ + 1);
  EXPECT_TRUE(client.Closed());
  taken.socket.Reset();
  WaitOpen(0);
  EXPECT_EQ(metrics_.ended[static_cast<std::size_t>(ConnectionEnding::kOversize)], 1);
}

TEST_F(ConnectionLoopTest, AcceptsJudgesAndClosesWhileAnOwnerTakesLong) {
  ConnectionLoopOptions options = Options();
  options.limits = {4, 4};
  options.handshake_timeout = std::chrono::milliseconds(50);
  Start(options);
  SetOwnerSlow(true);
  Client first(port_);
  first.Send(kHello + kAck);
  Taken taken_first = Take();
  Client second(port_);
  second.Send(kHello);
  EXPECT_EQ(second.Read(21), Http2Settings(100, 8192));
  second.Send(kAck);
  Client silent(port_);
  EXPECT_TRUE(silent.Closed());
  EXPECT_EQ(metrics_.ended[static_cast<std::size_t>(ConnectionEnding::kHandshakeTimeout)], 1);
  Client third(port_);
  third.Send(kHello + kAck);
  Client fourth(port_);
  fourth.Send(kHello + kAck);
  EXPECT_FALSE(NextRoom());
  Client refused(port_);
  EXPECT_TRUE(refused.Closed());
  EXPECT_TRUE(NothingTaken());
  SetOwnerSlow(false);
  for (int waiting = 0; waiting < 3; ++waiting) Take();
}

TEST_F(ConnectionLoopTest, EndsAFloodBeforeTheOwnersSettingsAndLeavesNoneOfItToBeRead) {
  Start(Options());
  const std::string flood(8 << 20, 'f');
  std::int64_t ended = 0;
  for (const bool at_once : {true, false}) {
    for (const bool slow : {true, false}) {
      SetOwnerSlow(slow);
      Client client(port_);
      Client patient(port_);
      if (at_once) {
        client.Send(kHello + kAck + flood);  // Up to its end: nobody reads.
      } else {
        client.Send(kHello + kAck);
      }
      Taken taken = Take();
      if (!at_once) client.Send(flood);
      WaitOpen(1);
      ++ended;
      EXPECT_EQ(metrics_.ended[static_cast<std::size_t>(ConnectionEnding::kOversize)], ended);
      EXPECT_EQ(ReadAll(taken.socket).size(), 0u) << slow << at_once;
      SetOwnerSlow(false);
      patient.Close();
      WaitOpen(0);
    }
  }
}

TEST_F(ConnectionLoopTest, KeepsWhatAClientMaySendBeforeTheOwnersSettings) {
  Start(Options());
  for (const bool slow : {true, false}) {
    SetOwnerSlow(slow);
    Client client(port_);
    // The least that a client may send, and what the loop allows.
    const std::string data = std::string(65535, 'a') + std::string((512 << 10) - 65535 - 9, 'b');
    client.Send(kHello + kAck + data);
    Taken taken = Take();
    while (UnreadBytes(taken.socket.get()) < (512 << 10)) std::this_thread::yield();
    EXPECT_FALSE(Readable(taken.socket, 20));
    EXPECT_EQ(metrics_.open, 1);
    SetOwnerSlow(false);
    (void)!send(taken.socket.get(), kOwnSettings.data(), kOwnSettings.size(), 0);
    ASSERT_TRUE(Readable(taken.socket, kWaitMillis));
    shutdown(taken.socket.get(), SHUT_WR);
    client.Close();
    EXPECT_EQ(ReadAll(taken.socket), kAck + data);
    WaitOpen(0);
  }
}

TEST_F(ConnectionLoopTest, AClientThatHasTheOwnersSettingsSendsWhatItLikesUntilTheOwnerIsLate) {
  for (const bool late : {false, true}) {
    ConnectionLoopOptions options = Options();
    options.traffic.connection_bytes = 1 << 30;
    options.hand_over_timeout =
        late ? std::chrono::milliseconds(20) : Duration(std::chrono::hours(1));
    loop_ = nullptr;
    Start(options);
    SetOwnerSlow(true);
    Client client(port_);
    client.Send(kHello + kAck);
    Taken taken = Take();
    (void)!send(taken.socket.get(), kOwnSettings.data(), kOwnSettings.size(), 0);
    EXPECT_EQ(client.Read(kOwnSettings.size()), kOwnSettings);
    const std::string data(900 << 10, 'd');
    client.Send(data);
    if (late) {
      WaitOpen(0);
      EXPECT_EQ(metrics_.ended[static_cast<std::size_t>(ConnectionEnding::kOversize)], 1);
      EXPECT_EQ(ReadAll(taken.socket).size(), 0u);
      SetOwnerSlow(false);
      continue;
    }
    while (UnreadBytes(taken.socket.get()) < (512 << 10)) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // Several looks of the loop.
    EXPECT_EQ(metrics_.open, 1);
    SetOwnerSlow(false);
    client.Close();
    EXPECT_EQ(ReadAll(taken.socket), kAck + data);
    shutdown(taken.socket.get(), SHUT_RDWR);
    WaitOpen(0);
  }
}

TEST_F(ConnectionLoopTest, RefusesBeyondTheLimitAndSaysWhenThereIsRoom) {
  ConnectionLoopOptions options = Options();
  options.limits = {3, 3};
  Start(options);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(std::make_unique<Client>(port_));
  EXPECT_FALSE(NextRoom());
  Client refused(port_);
  EXPECT_TRUE(refused.Closed());
  EXPECT_EQ(metrics_.refused[static_cast<std::size_t>(ConnectionRefusal::kFull)], 1);
  clients.pop_back();
  clients.pop_back();
  EXPECT_TRUE(NextRoom());
  Client taken(port_);
  Serve(taken);
}

TEST_F(ConnectionLoopTest, OnePeerHasItsShareAndAnotherItsOwn) {
  ConnectionLoopOptions options = Options();
  options.limits = {10, 2};
  Start(options);
  Client first(port_, "127.0.0.2");
  Client second(port_, "127.0.0.2");
  Client third(port_, "127.0.0.2");
  EXPECT_TRUE(third.Closed());
  EXPECT_EQ(metrics_.refused[static_cast<std::size_t>(ConnectionRefusal::kPeerFull)], 1);
  Client other(port_, "127.0.0.3");
  const Taken taken = Serve(other);
  first.Close();
  WaitOpen(2);
  Client again(port_, "127.0.0.2");
  Serve(again);
}

TEST_F(ConnectionLoopTest, EndsWhoeverDoesNotBeginInTime) {
  ConnectionLoopOptions options = Options();
  options.handshake_timeout = std::chrono::milliseconds(50);
  Start(options);
  Client silent(port_);
  Client half(port_);
  half.Send(kHello.substr(0, 10));
  EXPECT_TRUE(silent.Closed());
  EXPECT_TRUE(half.Closed());
  Client unacknowledged(port_);
  unacknowledged.Send(kHello);
  EXPECT_EQ(unacknowledged.Read(21).size(), 21u);
  EXPECT_TRUE(unacknowledged.Closed());
  EXPECT_EQ(metrics_.ended[static_cast<std::size_t>(ConnectionEnding::kHandshakeTimeout)], 3);
}

TEST_F(ConnectionLoopTest, NoticesTheEndOfAConnectionFromEitherSide) {
  Start(Options());
  Client first(port_);
  Client second(port_);
  {
    Taken one = Serve(first);
    Taken two = Serve(second);
    EXPECT_EQ(metrics_.open, 2);
    shutdown(one.socket.get(), SHUT_RDWR);  // As gRPC does before it closes.
    WaitOpen(1);
    EXPECT_TRUE(first.Read(kOwnSettings.size() + 21).size() > 0);
    EXPECT_TRUE(first.Closed());
    second.Close();
    shutdown(two.socket.get(), SHUT_RDWR);  // Which gRPC does when it has read the end.
    WaitOpen(0);
  }
}

TEST_F(ConnectionLoopTest, EndsWhatReceivesMoreThanIsDelivered) {
  Start(Options());
  Client client(port_);
  Taken taken = Serve(client);
  std::string bytes(1 << 16, 'x');
  for (int i = 0; i < 64; ++i) {
    client.Send(bytes);
    std::string read(1 << 16, '\0');
    if (!Readable(taken.socket, kWaitMillis) ||
        recv(taken.socket.get(), read.data(), read.size(), 0) <= 0)
      break;
  }
  WaitOpen(0);
  EXPECT_EQ(metrics_.ended[static_cast<std::size_t>(ConnectionEnding::kOversize)], 1);
}

// Reads what there is up to the end of the connection.
bool ReadsTheEnd(const Descriptor& socket) {
  char bytes[256];
  while (Readable(socket, kWaitMillis)) {
    const ssize_t got = recv(socket.get(), bytes, sizeof(bytes), 0);
    if (got == 0) return true;
    if (got < 0) return false;
  }
  return false;
}

TEST_F(ConnectionLoopTest, ClosesConnectionsOfEveryStageAndWaitsForTheirOwners) {
  Start(Options());
  Client silent(port_);
  Client opening(port_);
  opening.Send(kHello);
  Client held(port_);
  held.Send(kHello + kAck);
  Taken owner = Take();
  Client serving(port_);
  Taken served = Serve(serving);
  WaitOpen(4);
  std::thread closing([this] { loop_->CloseAll(std::chrono::hours(1)); });
  EXPECT_TRUE(silent.Closed());
  EXPECT_EQ(opening.Read(21).size(), 21u);
  EXPECT_TRUE(opening.Closed());
  for (Taken* taken : {&owner, &served}) {
    EXPECT_TRUE(ReadsTheEnd(taken->socket));
    shutdown(taken->socket.get(), SHUT_RDWR);
    taken->socket.Reset();
  }
  closing.join();
  EXPECT_EQ(metrics_.open, 0);
  Descriptor late(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<in_port_t>(port_));
  inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
  EXPECT_NE(connect(late.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
}

TEST_F(ConnectionLoopTest, ClosesAConnectionOnlyWhenItsClientHasWhatWasSent) {
  Start(Options());
  Client client(port_);
  Taken taken = Serve(client);
  const std::string sent(4 << 20, 'a');
  std::size_t written = 0;
  // As much as the two systems take: the rest waits here for the client to read.
  for (;;) {
    const ssize_t size = send(taken.socket.get(), sent.data(), sent.size(), MSG_DONTWAIT);
    if (size <= 0) break;
    written += static_cast<std::size_t>(size);
  }
  std::thread closing([this] { loop_->CloseAll(std::chrono::hours(1)); });
  std::size_t left = kOwnSettings.size() + written;
  while (left > 0) {
    const std::size_t read = client.Read(std::min<std::size_t>(left, 1 << 16)).size();
    ASSERT_GT(read, 0u) << left << " bytes are lost";
    left -= read;
  }
  EXPECT_TRUE(ReadsTheEnd(taken.socket));
  shutdown(taken.socket.get(), SHUT_RDWR);
  closing.join();
}

TEST_F(ConnectionLoopTest, ClosesConnectionsThatAreNotReadWhenTheGraceIsOver) {
  Start(Options());
  Client client(port_);
  Taken taken = Serve(client);
  const std::string sent(4 << 20, 'a');
  while (send(taken.socket.get(), sent.data(), sent.size(), MSG_DONTWAIT) > 0) {
  }
  loop_->CloseAll(Duration(0));
  EXPECT_TRUE(ReadsTheEnd(taken.socket));
}

TEST_F(ConnectionLoopTest, StopsOnlyWhenAllThatWaitForTheirOwnerHaveIt) {
  Start(Options());
  SetOwnerSlow(true);
  Client first(port_);
  first.Send(kHello + kAck);
  Taken taken_first = Take();
  Client second(port_);
  second.Send(kHello);
  EXPECT_EQ(second.Read(21).size(), 21u);
  second.Send(kAck);
  Client flooding(port_);
  flooding.Send(kHello);
  EXPECT_EQ(flooding.Read(21).size(), 21u);
  flooding.Send(kAck);
  Client opening(port_);  // The loop greets it after it has read the acknowledgement above.
  opening.Send(kHello);
  EXPECT_EQ(opening.Read(21).size(), 21u);
  std::thread stopping([this] { loop_.reset(); });
  EXPECT_TRUE(opening.Closed());
  flooding.Send(std::string(8 << 20, 'f'));  // Ends, because the loop still watches.
  SetOwnerSlow(false);
  Taken taken_second = Take();
  Taken ended = Take();
  stopping.join();
  EXPECT_EQ(ReadAll(ended.socket).size(), 0u);
  EXPECT_TRUE(Readable(taken_first.socket, kWaitMillis));
  EXPECT_TRUE(Readable(taken_second.socket, kWaitMillis));
}

TEST_F(ConnectionLoopTest, StopsWithConnectionsInEveryStage) {
  Start(Options());
  Client silent(port_);
  Client opening(port_);
  opening.Send(kHello);
  Client held(port_);
  held.Send(kHello + kAck);
  Taken owner = Take();
  Client serving(port_);
  Taken served = Serve(serving);
  loop_.reset();
  EXPECT_TRUE(silent.Closed());
  EXPECT_EQ(opening.Read(21).size(), 21u);
  EXPECT_TRUE(opening.Closed());
  // Those that were handed on are their owners'.
  EXPECT_TRUE(Readable(owner.socket, kWaitMillis));
  serving.Send("x");
  EXPECT_TRUE(Readable(served.socket, kWaitMillis));
}

TEST_F(ConnectionLoopTest, ACallerKnowsByWhichListenerItCame) {
  Start(Options());
  Client client(port_);
  Client admin(admin_port_);
  const Taken one = Serve(client);
  const Taken two = Serve(admin);
  EXPECT_FALSE(callers_.Find(NameOf(client))->origin.admin_listener);
  EXPECT_TRUE(callers_.Find(NameOf(admin))->origin.admin_listener);
}

// Calls find their connection by the client's address and port, so one that has the same at both
// listeners would have the rights and the counts of both.
TEST_F(ConnectionLoopTest, NoConnectionBorrowsTheOriginOfOneWithTheSameAddressAndPort) {
  Start(Options());
  // The first connection's listener, and the second one's.
  for (const auto& [at, other] : {std::pair(&port_, &admin_port_), std::pair(&admin_port_, &port_),
                                  std::pair(&port_, &second_port_)}) {
    Client first(*at);
    Taken taken = Serve(first);
    Client second(*other, "127.0.0.1", first.source_port());
    ASSERT_EQ(second.source_port(), first.source_port());
    second.Send(kHello + kAck);
    while (second.Read(1).size() == 1) {  // The loop's settings, and then its end.
    }
    EXPECT_TRUE(NothingTaken());
    EXPECT_EQ(callers_.Find(NameOf(first))->origin.admin_listener, at == &admin_port_);
    first.Close();
    taken.socket.Reset();
    loop_.reset();
    Start(Options());
  }
}

}  // namespace
}  // namespace normd
