#include "server/rest/rest_server.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/mutex.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/posix/stream_descriptor.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/thread_pool.hpp"
#include "server/net/acceptor.h"
#include "server/net/connection_policy.h"
#include "server/net/listener.h"
#include "server/net/process_limits.h"
#include "server/rest/rest_connection.h"

namespace normd {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

constexpr int kMostThreads = 4;
// Memory of bodies that was not lent for so long goes back to the system.
constexpr auto kTrimInterval = std::chrono::seconds(10);

TimePoint SteadyNow() { return std::chrono::steady_clock::now(); }

// How often connections are looked at for their time limits.
Duration PeriodOf(const RestOptions& options) {
  Duration least = std::chrono::seconds(8);
  for (const Duration limit : {options.handshake_timeout, options.message_timeout,
                               options.response_timeout, options.max_idle}) {
    if (limit > Duration(0)) least = std::min(least, limit);
  }
  return std::max<Duration>(least / 8, std::chrono::milliseconds(10));
}

// A third of the free descriptors: gRPC takes two for each connection.
ConnectionLimits LimitsOf(const RestOptions& options) {
  const std::int64_t open = OpenDescriptors();
  const std::int64_t free = RaiseDescriptorLimit() - open;
  return DecideLimits(options.max_connections, options.max_peer_connections, open + free / 3 * 2,
                      open);
}

// The open connections, which acceptor and connections count on their threads.
class Places {
 public:
  Places(const ConnectionLimits& limits, ConnectionMetrics& metrics)
      : limits_(limits), metrics_(metrics) {
    metrics_.SetLimit(limits_.connections);
  }

  Taking Take(const std::string& share) {
    MutexLock lock(mutex_);
    const auto found = per_peer_.find(share);
    const Taking taking = DecideTaking(limits_, all_, found == per_peer_.end() ? 0 : found->second);
    if (taking != Taking::kTake) return taking;
    ++per_peer_[share];  // May throw.
    metrics_.SetOpen(++all_);
    return taking;
  }
  void Return(const std::string& share) {
    MutexLock lock(mutex_);
    const auto found = per_peer_.find(share);
    if (--found->second == 0) per_peer_.erase(found);
    metrics_.SetOpen(--all_);
    if (all_ == 0) none_.SignalAll();
  }
  bool WaitNone(TimePoint until) {
    MutexLock lock(mutex_);
    while (all_ > 0 && SteadyNow() < until) none_.WaitUntil(mutex_, until);
    return all_ == 0;
  }

 private:
  const ConnectionLimits limits_;
  ConnectionMetrics& metrics_;
  Mutex mutex_;
  CondVar none_;
  std::int64_t all_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::int64_t> per_peer_ ABSL_GUARDED_BY(mutex_);
};

// One thread with its connections.
class Worker {
 public:
  explicit Worker(Duration period) : period_(period) { Tick(); }
  ~Worker() {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void Start() {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "http");
      while (!context_.stopped()) {
        try {
          context_.run();
        } catch (const std::exception&) {
          // No memory for one connection's operation: that connection is gone with it.
        }
      }
    });
  }

  asio::io_context& context() { return context_; }

  // On any thread.
  void Begin(Descriptor socket, std::shared_ptr<Caller> caller, RestParts& parts,
             std::function<void()> on_end) {
    asio::post(context_, [this, socket = std::move(socket), caller = std::move(caller), &parts,
                          on_end = std::move(on_end)]() mutable {
      std::shared_ptr<RestConnection> connection;
      try {
        connection = MakeRestConnection(context_, std::move(socket), std::move(caller), parts);
        connection->on_end = [this, raw = connection.get(), on_end] {
          connections_.erase(raw);
          on_end();
        };
      } catch (const std::exception&) {
        return on_end();
      }
      connections_.insert(connection.get());  // If this throws, the connection ends.
      connection->Start();
    });
  }

  template <typename Act>
  void ForEach(Act act) {
    asio::post(context_, [this, act] { Visit(act); });
  }

 private:
  template <typename Act>
  void Visit(Act act) {
    for (auto next = connections_.begin(); next != connections_.end();) {
      RestConnection& connection = **next++;  // One that ends leaves the set.
      try {
        act(connection);
      } catch (const std::exception&) {
        connection.Drop();  // No memory for it.
      }
    }
  }

  void Tick() {
    timer_.expires_after(period_);
    timer_.async_wait([this](ErrorCode error) {
      if (error) return;
      Visit([now = SteadyNow()](RestConnection& one) { one.Check(now); });
      Tick();
    });
  }

  const Duration period_;
  std::set<RestConnection*> connections_;  // Used by the thread alone.
  asio::io_context context_{1};
  asio::steady_timer timer_{context_};
  std::thread thread_;
};

class RestServerImpl final : public RestServer {
 public:
  RestServerImpl(const RestOptions& options, RestEnvironment& environment, Listener listener)
      : options_(options),
        environment_(environment),
        parts_{options_, environment,
               environment.accept.metrics.ForConnections(RequestPort::kHttp)},
        pool_watch_(environment.accept.metrics.WatchPool(
            "http",
            [&pool = parts_.bodies] {
              return PoolUse{pool.used_bytes(), pool.free_bytes()};
            })),
        address_(listener.address),
        port_(listener.port),
        places_(LimitsOf(options), parts_.metrics),
        later_(static_cast<std::size_t>(Threads())),
        epoll_(Opened(epoll_create1(EPOLL_CLOEXEC))),
        acceptor_(std::move(listener), epoll_.get(), 0) {
    environment.later = [this](absl::AnyInvocable<void() &&> work) {
      asio::post(later_, [work = std::move(work)]() mutable { std::move(work)(); });
    };
    for (int i = 0; i < Threads(); ++i) {
      workers_.push_back(std::make_unique<Worker>(PeriodOf(options)));
    }
    events_.emplace(workers_[0]->context(), Opened(dup(epoll_.get())).Release());
    pause_.emplace(workers_[0]->context());
    trim_.emplace(workers_[0]->context());
    Accept();
    TrimLater();
    for (auto& worker : workers_) worker->Start();
  }

  ~RestServerImpl() override {
    Stop();
    for (auto& worker : workers_) worker->ForEach([](RestConnection& one) { one.Drop(); });
    // A call in a lane cannot be stopped.
    places_.WaitNone(kNever);
    later_.join();
    workers_.clear();
  }

  const std::string& address() const override { return address_; }
  int port() const override { return port_; }

  void Drain() override {
    parts_.draining = true;
    for (auto& worker : workers_) worker->ForEach([](RestConnection& one) { one.Drain(); });
  }

  void Close(Duration grace) override {
    Drain();
    Stop();
    for (auto& worker : workers_) worker->ForEach([](RestConnection& one) { one.CloseIdle(); });
    places_.WaitNone(SteadyNow() + grace);
    for (auto& worker : workers_) worker->ForEach([](RestConnection& one) { one.CloseEnding(); });
  }

 private:
  int Threads() const {
    if (options_.threads > 0) return options_.threads;
    return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostThreads);
  }

  // Accepts no more. Waits until the acceptor's thread has seen it.
  void Stop() {
    if (std::exchange(stopped_, true)) return;
    absl::Notification done;
    asio::post(workers_[0]->context(), [&] {
      pause_.reset();
      trim_.reset();
      events_.reset();
      acceptor_.Stop();
      done.Notify();
    });
    done.WaitForNotification();
  }

  void Accept() {
    events_->async_wait(asio::posix::stream_descriptor::wait_read, [this](ErrorCode error) {
      if (error || !events_.has_value()) return;
      std::array<epoll_event, 16> events;
      const int count = epoll_wait(epoll_.get(), events.data(), events.size(), 0);
      for (int i = 0; i < count; ++i) {
        const int failure = acceptor_.Accept(
            events[static_cast<std::size_t>(i)].data.u64,
            [this](Descriptor socket, const PeerAddress& peer, ConnectionOrigin origin) {
              try {
                Admit(std::move(socket), peer, origin);
              } catch (const std::exception&) {
                // No memory for a place: the connection closes, and others are accepted.
              }
            });
        if (failure != 0) parts_.metrics.RecordRefused(ConnectionRefusal::kNoDescriptors);
      }
      if (acceptor_.paused()) return AcceptLater();
      Accept();
    });
  }

  void AcceptLater() {
    pause_->expires_after(std::chrono::milliseconds(20));
    pause_->async_wait([this](ErrorCode error) {
      if (error || !events_.has_value()) return;
      acceptor_.Resume(SteadyNow());
      if (acceptor_.paused()) return AcceptLater();
      Accept();
    });
  }

  void TrimLater() {
    trim_->expires_after(kTrimInterval);
    trim_->async_wait([this](ErrorCode error) {
      if (error || !trim_.has_value()) return;
      parts_.bodies.Trim();
      TrimLater();
    });
  }

  void Admit(Descriptor socket, const PeerAddress& peer, ConnectionOrigin origin) {
    const Taking taking = places_.Take(peer.share);
    if (taking != Taking::kTake) {
      return parts_.metrics.RecordRefused(taking == Taking::kFull ? ConnectionRefusal::kFull
                                                                  : ConnectionRefusal::kPeerFull);
    }
    parts_.metrics.RecordAccepted();
    try {
      Worker& worker = *workers_[next_++ % workers_.size()];
      // Not by Callers::Begin: the same port may have a connection of gRPC's, which has that name.
      std::shared_ptr<Peer> party =
          environment_.accept.callers.FindPeer(PeerNameOf(peer.grpc_peer));
      std::shared_ptr<Caller> caller(new Caller{peer.grpc_peer, std::move(party), origin});
      worker.Begin(std::move(socket), std::move(caller), parts_,
                   [this, share = peer.share] { places_.Return(share); });
    } catch (const std::exception&) {
      places_.Return(peer.share);  // No memory for this connection.
    }
  }

  const RestOptions options_;
  RestEnvironment& environment_;
  RestParts parts_;
  const std::shared_ptr<void> pool_watch_;  // Ends before the pool that it reads.
  const std::string address_;
  const int port_;
  Places places_;
  asio::thread_pool later_;
  Descriptor epoll_;
  Acceptor acceptor_;  // Used by the first worker's thread.
  std::size_t next_ = 0;
  bool stopped_ = false;
  std::vector<std::unique_ptr<Worker>> workers_;
  // The first worker's; until Stop.
  std::optional<asio::posix::stream_descriptor> events_;
  std::optional<asio::steady_timer> pause_;
  std::optional<asio::steady_timer> trim_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RestServer>> RestServer::Start(const RestOptions& options,
                                                              RestEnvironment& environment) {
  absl::StatusOr<Listener> listener = ListenAtAll(options.listen, "http_listen");
  if (!listener.ok()) return listener.status();
  try {
    return std::unique_ptr<RestServer>(
        std::make_unique<RestServerImpl>(options, environment, *std::move(listener)));
  } catch (const std::runtime_error& error) {  // Asio's system_error, or the standard one.
    return absl::UnavailableError(absl::StrCat("http_listen: ", error.what()));
  }
}

std::int64_t RestDescriptors(const RestOptions& options) { return LimitsOf(options).connections; }

}  // namespace normd
