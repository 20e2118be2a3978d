// Calls that wait on the client's side, so that the transport holds few of them.
//
// HTTP/2 lets a server bound the calls of a connection, and gRPC then sends the oldest waiting
// ones. Under lasting overload the oldest is always close to its deadline: it leaves with too
// little time, its bytes travel in vain, and so do those of the next. Here the newest goes first as
// soon as the oldest has spent half its time, and calls that have reached their deadline when
// another ends are dropped unsent.

#ifndef NORMD_CLIENT_LOAD_BACKLOG_H_
#define NORMD_CLIENT_LOAD_BACKLOG_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/load/sender.h"

namespace normd::load {

// The calls of one connection. Thread-safe.
class Backlog {
 public:
  struct Entry {
    TimePoint since{};  // The intended send.
    TimePoint deadline = kNever;
    Outgoing outgoing;
    Sender::Done done;

    // That of a call whose time is `now`; `timeout`: the run's, for an item without its own.
    static Entry Of(const Outgoing& outgoing, Duration timeout, TimePoint now, Sender::Done done);
  };

  // At most `limit` calls, at least 1, are out at once.
  explicit Backlog(std::size_t limit) : limit_(limit) {}

  // True: send it now; it is out until its Leave. False: `entry` was taken and waits.
  bool Enter(Entry& entry);

  struct Next {
    std::optional<Entry> send;  // This call is out now.
    std::vector<Entry> late;    // These reached their deadline unsent.
  };
  // Call when a call that was out has ended.
  Next Leave(TimePoint now);
  // Leaves with the outcome of that call: `send` starts the next, late ones end, and `done` runs
  // last: the sender, and with it the backlog, may end when all calls have ended.
  void End(const Outcome& outcome, Sender::Done done, absl::FunctionRef<void(Entry)> send);

 private:
  const std::size_t limit_;
  Mutex mutex_;
  std::size_t out_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Entry> waiting_ ABSL_GUARDED_BY(mutex_);  // The oldest first.
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_BACKLOG_H_
