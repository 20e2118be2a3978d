// The server's log: what spdlog's default logger is told, and the lines of the request log.

#ifndef NORMD_SERVER_LOG_SERVER_LOG_H_
#define NORMD_SERVER_LOG_SERVER_LOG_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/descriptor.h"
#include "server/log/line_writer.h"

namespace normd {

// How a line of the log looks. Both have the time in UTC:
//   [2026-11-27T06:12:00.123Z] [normd] [info] serving: ...
//   {"time":"2026-11-27T06:12:00.123456Z","level":"info","message":"serving: ..."}
// Lines of the request log are JSON either way.
enum class LogFormat { kText, kJson };

// Opens the log file at `path` to append to it, and makes it if it is not there, for its owner and
// group alone. The error names the path. Never waits, even for the reader of a pipe.
absl::StatusOr<Descriptor> OpenLogFile(const std::string& path);

// Makes spdlog's default logger write to `fd`, for the rest of the process. No thread that logs
// ever waits for `fd`: see LineWriter. Lines that are lost are counted, and the log tells of them
// once it can. The destructor waits up to two seconds for lines that are not yet written.
// Thread-safe.
class ServerLog {
 public:
  // `level` is a name of spdlog's.
  ServerLog(int fd, const std::string& level, LogFormat format = LogFormat::kText);
  ~ServerLog();
  ServerLog(const ServerLog&) = delete;
  ServerLog& operator=(const ServerLog&) = delete;

  // `line` without its end, as it is. The log proper keeps half of the memory for itself.
  void WriteRequestLine(absl::string_view line) noexcept;

  // For an exit that runs no destructor. Waits as the destructor does.
  void Flush();

  // From now on `fd` is what OpenLogFile(path) opens, as after a rotation. On an error it stays
  // what it was, and the log has the reason.
  void Reopen(const std::string& path);

  std::int64_t lost_lines() const { return writer_->lost(); }

 private:
  const int fd_;
  // shared: with the logger, which other threads use until the process ends.
  const std::shared_ptr<LineWriter> writer_;
};

}  // namespace normd

#endif  // NORMD_SERVER_LOG_SERVER_LOG_H_
