// Writes lines to a file descriptor that may stop taking them, such as an unread pipe.

#ifndef NORMD_SERVER_LOG_LINE_WRITER_H_
#define NORMD_SERVER_LOG_LINE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace normd {

struct LineWriterOptions {
  std::size_t max_bytes = std::size_t{1} << 20;  // Bytes of lines that wait to be written.
  Duration linger = std::chrono::seconds(2);     // The destructor's time limit for them.
  // Makes the line that reports the number of lines lost before it.
  std::function<std::string(std::int64_t lost)> describe_lost;
};

// Thread-safe. A line waits in memory until the writer's own thread has written it, so a descriptor
// that blocks delays no other thread. A line is lost when too many already wait or when the
// descriptor refuses it; one that it took in part is ended before the next. Once the descriptor
// takes lines again and most waiting lines are out, it gets `describe_lost`.
class LineWriter {
 public:
  enum class Share { kAll, kHalf };

  // Borrows `fd` for the life of the process: a thread that is stuck in a write stays there.
  LineWriter(int fd, LineWriterOptions options);
  // Calls Flush, for up to `linger`.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Never blocks and never throws. `line` includes its own end. kHalf: the line is lost if half of
  // `max_bytes` is taken, so that it takes no room from more important lines.
  void Write(absl::string_view line, Share share = Share::kAll) noexcept;

  // Counts a line as lost that could not be made.
  void Lose() noexcept;

  // Waits until every line is written or lost, or until `timeout` has passed; returns whether none
  // waits.
  bool Flush(Duration timeout);

  std::int64_t lost() const;

 private:
  struct State;
  static void Run(State& state);

  // shared: with the thread, which may be stuck when the writer ends.
  const std::shared_ptr<State> state_;
  const Duration linger_;
};

}  // namespace normd

#endif  // NORMD_SERVER_LOG_LINE_WRITER_H_
