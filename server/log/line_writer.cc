#include "server/log/line_writer.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace normd {
namespace {

// Returns how many bytes `fd` took: all, unless it refuses some. Blocks while it takes nothing. One
// call per line, so that lines of up to PIPE_BUF are not mixed with those of another process at the
// same pipe.
std::size_t WriteAll(int fd, absl::string_view bytes) {
  absl::string_view rest = bytes;
  while (!rest.empty()) {
    const ssize_t count = write(fd, rest.data(), rest.size());
    if (count > 0) {
      rest.remove_prefix(static_cast<std::size_t>(count));
    } else if (count < 0 && errno == EAGAIN) {
      // Another user of the open file has made it non-blocking.
      pollfd wait = {fd, POLLOUT, 0};
      poll(&wait, 1, -1);
    } else if (count == 0 || errno != EINTR) {
      break;
    }
  }
  return bytes.size() - rest.size();
}

}  // namespace

struct LineWriter::State {
  State(int file, LineWriterOptions writer_options)
      : fd(file), options(std::move(writer_options)) {}

  void Lose() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    ++lost, ++untold;
    work.SignalOne();  // Flush waits until it is told.
  }
  // Not while the descriptor refuses lines, which would cause a loop, nor while so many lines wait
  // that more may soon be lost.
  bool TellsLost() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return untold > 0 && takes_lines && options.describe_lost != nullptr &&
           bytes <= options.max_bytes / 4;
  }
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return lines.empty() && !writing && !TellsLost();
  }
  // Waits for the next line; nullopt at the end.
  std::optional<std::string> Next();

  const int fd;
  const LineWriterOptions options;
  Mutex mutex;
  CondVar work;
  CondVar idle;
  std::deque<std::string> lines ABSL_GUARDED_BY(mutex);
  std::size_t bytes ABSL_GUARDED_BY(mutex) = 0;  // In `lines`.
  std::int64_t lost ABSL_GUARDED_BY(mutex) = 0;
  std::int64_t untold ABSL_GUARDED_BY(mutex) = 0;  // Lost lines that have not been reported.
  bool writing ABSL_GUARDED_BY(mutex) = false;
  bool takes_lines ABSL_GUARDED_BY(mutex) = true;  // The last line was written.
  bool ending ABSL_GUARDED_BY(mutex) = false;
};

std::optional<std::string> LineWriter::State::Next() {
  std::int64_t lost_before = 0;
  {
    MutexLock lock(mutex);
    while (lines.empty() && !ending && !TellsLost()) {
      idle.SignalAll();
      work.Wait(mutex);
    }
    if (!TellsLost()) {
      if (lines.empty()) return std::nullopt;
      std::string line = std::move(lines.front());
      lines.pop_front();
      bytes -= line.size();
      writing = true;
      return line;
    }
    lost_before = std::exchange(untold, 0);
    writing = true;
  }
  try {
    return options.describe_lost(lost_before);
  } catch (const std::exception&) {
    MutexLock lock(mutex);
    untold += lost_before;
    return std::string();  // No memory to tell it: Run puts it off until a line was written.
  }
}

void LineWriter::Run(State& state) {
  bool torn = false;  // Part of a line was written: a full disk took no more.
  while (std::optional<std::string> line = state.Next()) {
    if (torn) torn = WriteAll(state.fd, "\n") == 0;
    const std::size_t count = torn ? 0 : WriteAll(state.fd, *line);
    const bool written = count == line->size();
    torn |= !written && count > 0;
    MutexLock lock(state.mutex);
    state.writing = false;
    state.takes_lines = written && !line->empty();
    if (!written) state.Lose();
  }
}

LineWriter::LineWriter(int fd, LineWriterOptions options)
    : state_(std::make_shared<State>(fd, std::move(options))), linger_(state_->options.linger) {
  // Detached: only the end of the process ends a thread that is stuck in a write.
  std::thread([state = state_] { Run(*state); }).detach();
}

LineWriter::~LineWriter() {
  Flush(linger_);
  MutexLock lock(state_->mutex);
  state_->ending = true;
  state_->work.SignalAll();
}

void LineWriter::Write(absl::string_view line, Share share) noexcept {
  State& state = *state_;
  const std::size_t limit = state.options.max_bytes / (share == Share::kHalf ? 2 : 1);
  MutexLock lock(state.mutex);
  try {
    if (line.size() > limit || state.bytes > limit - line.size()) return state.Lose();
    state.lines.emplace_back(line);
    state.bytes += line.size();
    state.work.SignalOne();
  } catch (const std::exception&) {
    state.Lose();  // No memory.
  }
}

void LineWriter::Lose() noexcept {
  MutexLock lock(state_->mutex);
  state_->Lose();
}

bool LineWriter::Flush(Duration timeout) {
  State& state = *state_;
  const TimePoint until = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(state.mutex);
  while (!state.Idle()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    state.idle.WaitUntil(state.mutex, until);
  }
  return true;
}

std::int64_t LineWriter::lost() const {
  MutexLock lock(state_->mutex);
  return state_->lost;
}

}  // namespace normd
