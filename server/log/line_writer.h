// Writes lines to a file descriptor that may stop taking them, such as a pipe that nobody reads.

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
  std::size_t max_bytes = std::size_t{1} << 20;  // In lines that wait to be written.
  Duration linger = std::chrono::seconds(2);     // How long the destructor waits for them.
  // Makes the line that tells a reader how many lines were lost before it.
  std::function<std::string(std::int64_t lost)> describe_lost;
};

// Thread-safe. A line waits in memory until a thread of the writer's own has written it, so a
// descriptor that blocks holds up nobody else. A line is lost when too many wait already or when
// the descriptor refuses it; once it takes lines again and most that waited are out, it gets
// `describe_lost`.
class LineWriter {
 public:
  enum class Share { kAll, kHalf };

  // Borrows `fd`, for as long as the process lives: a thread that is stuck in a write stays there.
  LineWriter(int fd, LineWriterOptions options);
  // Flush, for up to `linger`.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Never blocks and never throws. `line` carries its own end. kHalf: a line that finds half of
  // `max_bytes` taken is lost, so that it takes no room from those that matter more.
  void Write(absl::string_view line, Share share = Share::kAll) noexcept;

  // Waits until every line is written or lost, or until `timeout` has passed; whether none waits.
  bool Flush(Duration timeout);

  std::int64_t lost() const;

 private:
  struct State;
  static void Run(State& state);

  // shared: with the thread, which may be stuck when the writer goes.
  const std::shared_ptr<State> state_;
  const Duration linger_;
};

}  // namespace normd

#endif  // NORMD_SERVER_LOG_LINE_WRITER_H_
