// The way of a connection to its new owner.

#ifndef NORMD_SERVER_NET_HAND_OVER_H_
#define NORMD_SERVER_NET_HAND_OVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/task_thread.h"

namespace normd {

// The most that a client may have sent before its new owner has sent its settings. HTTP/2 allows
// 65,535 bytes of all messages before the owner's first word; this leaves room for a hundred calls'
// headers and more.
inline constexpr std::int64_t kMaxHeldBytes = std::int64_t{512} << 10;

struct HandOverOptions {
  bool tls = false;
  // From the owner's settings to its return from `take`, in either order.
  Duration timeout{0};
  std::int64_t settings_bytes = 0;  // Written before the owner writes anything.
};

// Hands connections to their new owner on a thread of its own: the owner may read what the client
// sends at that moment (gRPC does, if there is much), and a client that prolongs this would block
// the caller. The methods are for one thread.
class HandOver {
 public:
  // See ConnectionLoop::Callbacks.
  using Take = std::function<void(int socket, std::string first_bytes)>;

  // A connection that is on its way, or was.
  class Connection {
   public:
    // Whether the owner has not taken it, or failed to.
    bool waits() const { return taking_->load(std::memory_order_acquire) == Taking::kWaits; }

   private:
    friend HandOver;
    enum class Taking {
      kWaits,  // For `take`, or in it.
      kTaken,
      kFailed,  // For lack of memory.
    };
    bool held_ = false;               // Unreadable until the owner has sent its settings.
    std::int64_t opening_bytes_ = 0;  // Received up to the acknowledgement.
    TimePoint since_ = kNever;        // The owner's first sign of life.
    // shared: with the thread that hands it on.
    std::shared_ptr<std::atomic<Taking>> taking_;
  };

  enum class State { kOnItsWay, kServing, kFailed, kOversize };

  // `on_end` is called on the thread, after each `take`.
  HandOver(const HandOverOptions& options, Take take, std::function<void()> on_end);

  // Nothing but the opening has been read from `socket`.
  Connection Hold(int socket, bool is_unix) const;
  void Begin(const Connection& connection, Descriptor socket, std::string first_bytes);
  // `socket` is another descriptor of it. kOversize: its client sends more than it may without the
  // owner's settings, or so much that the owner, which reads it within `take`, does not return.
  State Check(Connection& connection, int socket, TimePoint now) const;

 private:
  const HandOverOptions options_;
  const Take take_;
  const std::function<void()> on_end_;
  TaskThread thread_;
};

}  // namespace normd

#endif  // NORMD_SERVER_NET_HAND_OVER_H_
