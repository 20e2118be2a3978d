// A ConnectionLoop with real sockets of loopback, between clients and an owner that the test plays.

#ifndef NORMD_TESTS_SERVER_NET_CONNECTION_LOOP_FIXTURE_H_
#define NORMD_TESTS_SERVER_NET_CONNECTION_LOOP_FIXTURE_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "server/net/connection_loop.h"
#include "tests/support/metric_value.h"
#include "tests/support/threads.h"

namespace normd::testing {

inline const std::string kHello =
    std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") + std::string("\0\0\0\x04\0\0\0\0\0", 9);
inline const std::string kAck("\0\0\0\x04\x01\0\0\0\0", 9);
// As an owner of the connection sends them: longer than nothing.
inline const std::string kOwnSettings(40, 's');

inline constexpr int kWaitMillis = 20000;

// A client of loopback, from any of its addresses.
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
  // How a client may leave: it resets the connection, closes it, or says that it sends no more.
  enum class Leaving { kReset, kClose, kHalfClose };
  void Leave(Leaving how) {
    const linger at_once = {1, 0};
    if (how == Leaving::kReset) {
      setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }
    if (how == Leaving::kHalfClose) {
      shutdown(socket_.get(), SHUT_WR);
    } else {
      Close();
    }
  }
  int source_port() const {
    sockaddr_in address = {};
    socklen_t size = sizeof(address);
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.sin_port);
  }

 private:
  Descriptor socket_;
};

// A connection as its new owner gets it.
struct Taken {
  Descriptor socket;
  std::string first_bytes;
};

inline bool Readable(const Descriptor& socket, int millis) {
  pollfd poll_for = {socket.get(), POLLIN, 0};
  return poll(&poll_for, 1, millis) == 1;
}

// A loop with three listeners, whose owner is the test.
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
      if (owner_without_memory_.exchange(false)) throw std::bad_alloc();
    };
    callbacks.on_room = [this](bool room) {
      if (without_memory_ > 0 && without_memory_-- > 0) throw std::bad_alloc();
      MutexLock lock(mutex_);
      rooms_.push_back(room);
      changed_.SignalAll();
    };
    callbacks.streams_of = [this](const std::string& peer) {
      EXPECT_EQ(peer.substr(0, 11), "ipv4:127.0.");
      ++counts_;
      return StreamCounts{streams_, ended_};
    };
    callbacks.heap_bytes = [this] { return heap_ += heap_growth_; };
    callbacks.inside_bytes = [this] { return inside_.load(); };
    loop_ = std::make_unique<ConnectionLoop>(options, *std::move(listener), std::move(callbacks),
                                             callers_, metrics_.ForConnections(RequestPort::kGrpc));
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
    WaitUntil([&] { return MetricValue(metrics_, families::kConnections) == connections; });
  }
  // A client that leaves after any part of `opening` takes its connection with it, whether the
  // loop has seen that part before or not.
  void ExpectNoneKeptOfParts(const std::string& opening, ConnectionLoopOptions options) {
    options.handshake_timeout = std::chrono::hours(1);
    Start(options);
    std::int64_t accepted = 0;
    for (const Client::Leaving how :
         {Client::Leaving::kReset, Client::Leaving::kClose, Client::Leaving::kHalfClose}) {
      for (std::size_t size = 0; size < opening.size(); ++size) {
        for (const bool seen : {false, true}) {
          ++accepted;
          SCOPED_TRACE(::testing::Message() << size << " bytes, " << static_cast<int>(how));
          Client client(port_);
          client.Send(opening.substr(0, size));
          if (seen) WaitOpen(1);
          client.Leave(how);
          WaitUntil(
              [&] { return MetricValue(metrics_, families::kConnectionsAccepted) == accepted; });
          WaitOpen(0);
        }
      }
    }
    EXPECT_TRUE(NothingTaken());
  }

  // A connection that serves, with the owner's settings sent.
  Taken Serve(Client& client) {
    client.Send(kHello + kAck);
    Taken taken = Take();
    (void)!send(taken.socket.get(), kOwnSettings.data(), kOwnSettings.size(), 0);
    EXPECT_TRUE(Readable(taken.socket, kWaitMillis));
    return taken;
  }

  // Sends what the owner reads and keeps, or what it has taken when its connection ends.
  void Upload(Client& client, Taken& taken, std::int64_t bytes) {
    std::string block(1 << 16, 'x');
    for (std::int64_t sent = 0; sent < bytes; sent += static_cast<std::int64_t>(block.size())) {
      client.Send(block);
      if (recv(taken.socket.get(), block.data(), block.size(), MSG_WAITALL) <= 0) return;
    }
  }
  std::int64_t Ended(ConnectionEnding why) {
    return MetricValue(metrics_, families::kConnectionsEnded, {ConnectionEndingName(why)});
  }

  std::string NameOf(const Client& client) const {
    return "ipv4:127.0.0.1:" + std::to_string(client.source_port());
  }

  int port_ = 0;
  int second_port_ = 0;
  int admin_port_ = 0;
  Metrics metrics_;
  Callers callers_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Taken> taken_ ABSL_GUARDED_BY(mutex_);
  std::atomic<std::int64_t> streams_{1};
  std::atomic<std::int64_t> ended_{0};
  std::atomic<std::int64_t> heap_{0};
  std::atomic<std::int64_t> heap_growth_{0};  // At each look.
  std::atomic<std::int64_t> inside_{0};
  std::atomic<int> counts_{0};
  std::atomic<int> without_memory_{0};  // How many times `on_room` finds none.
  // At its next taking, when it already has the socket.
  std::atomic<bool> owner_without_memory_{false};
  bool owner_is_slow_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<bool> rooms_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ConnectionLoop> loop_;
};

// All that comes until the end of the connection.
inline std::string ReadAll(const Descriptor& socket) {
  std::string all;
  char bytes[1 << 16];
  while (Readable(socket, kWaitMillis)) {
    const ssize_t got = recv(socket.get(), bytes, sizeof(bytes), 0);
    if (got <= 0) break;
    all.append(bytes, static_cast<std::size_t>(got));
  }
  return all;
}

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_NET_CONNECTION_LOOP_FIXTURE_H_
