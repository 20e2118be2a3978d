// Calls that wait on the client's side, so that the transport holds few of them.
//
// HTTP/2 lets a server bound the calls of a connection, and gRPC then sends the oldest of those
// that wait. Under lasting overload the oldest is always about to reach its deadline: it leaves
// with too little time, its bytes travel for nothing, and so do those of the next. Here the newest
// goes first as soon as the oldest has spent half its time, and those that have reached their
// deadline when a call ends are given up unsent.

#ifndef NORMD_CLIENT_LOAD_BACKLOG_H_
#define NORMD_CLIENT_LOAD_BACKLOG_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "client/load/sender.h"

namespace normd::load {

// The calls of one connection. Thread-safe; runs no call's `done` itself.
class Backlog {
 public:
  struct Entry {
    TimePoint since{};  // When it was to be sent.
    TimePoint deadline = kNever;
    Outgoing outgoing;
    Sender::Done done;
  };

  // At most `limit` calls are out at once; at least 1.
  explicit Backlog(std::size_t limit) : limit_(limit) {}

  // True: to be sent now; it is out until its Leave. False: `entry` was taken and waits.
  bool Enter(Entry& entry);

  struct Next {
    std::optional<Entry> send;  // Is out now.
    std::vector<Entry> late;    // Reached their deadline, unsent.
  };
  // A call that was out has ended.
  Next Leave(TimePoint now);

 private:
  const std::size_t limit_;
  Mutex mutex_;
  std::size_t out_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Entry> waiting_ ABSL_GUARDED_BY(mutex_);  // The oldest first.
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_BACKLOG_H_
