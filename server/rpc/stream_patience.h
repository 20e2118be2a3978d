// The time for which a stream's client may keep the server waiting. Pure: time is given.

#ifndef NORMD_SERVER_RPC_STREAM_PATIENCE_H_
#define NORMD_SERVER_RPC_STREAM_PATIENCE_H_

#include "absl/status/status.h"
#include "base/clock.h"

namespace normd {

// The client's turn is bounded in every state of the stream: no header, no next chunk, no
// half-close, a message or the end that it does not take. Not thread-safe.
class StreamPatience {
 public:
  // `timeout` of 0: no limit.
  StreamPatience(Duration timeout, TimePoint now) : timeout_(timeout), last_progress_(now) {}

  bool bounded() const { return timeout_ > Duration(0); }
  // The time of the client's last action, or of the beginning of its turn.
  TimePoint last_progress() const { return last_progress_; }
  // The next time to check: the client is not dropped before.
  TimePoint CheckAt() const;

  void OnProgress(TimePoint now) { last_progress_ = now; }
  // The client has to take a message until OnTaken.
  void OnWrite(TimePoint now) { write_since_ = now; }
  void OnTaken(TimePoint now);
  // Others wait for the client to send a row and take its result, until EndOverdraft. A client that
  // sends a byte now and then would delay that for ever, so it has `patience` for all of it.
  void BeginOverdraft(TimePoint now, Duration patience);
  void EndOverdraft() { overdraft_until_ = kNever; }

  // DeadlineExceeded when the client is to be dropped; else OK. In the server's turn the client's
  // has not begun.
  absl::Status Check(TimePoint now, bool servers_turn);

 private:
  const Duration timeout_;
  TimePoint last_progress_;
  TimePoint write_since_ = kNever;      // kNever: nothing is being written.
  TimePoint overdraft_until_ = kNever;  // kNever: there is no overdraft.
  Duration overdraft_patience_{};
};

}  // namespace normd

#endif  // NORMD_SERVER_RPC_STREAM_PATIENCE_H_
