// The server's log: what spdlog's default logger is told, and the lines of the request log.

#ifndef NORMD_SERVER_LOG_SERVER_LOG_H_
#define NORMD_SERVER_LOG_SERVER_LOG_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "server/log/line_writer.h"

namespace normd {

// Makes spdlog's default logger write to `fd`, for the rest of the process. No thread that logs
// ever waits for `fd`: see LineWriter. Lines that are lost are counted, and the log tells of them
// once it can. The destructor waits up to two seconds for lines that are not yet written.
// Thread-safe.
class ServerLog {
 public:
  // `level` is a name of spdlog's.
  ServerLog(int fd, const std::string& level);
  ~ServerLog();
  ServerLog(const ServerLog&) = delete;
  ServerLog& operator=(const ServerLog&) = delete;

  // `line` without its end, as it is. The log proper keeps half of the memory for itself.
  void WriteRequestLine(absl::string_view line) noexcept;

  // For an exit that runs no destructor. Waits as the destructor does.
  void Flush();

  std::int64_t lost_lines() const { return writer_->lost(); }

 private:
  // shared: with the logger, which other threads use until the process ends.
  const std::shared_ptr<LineWriter> writer_;
};

}  // namespace normd

#endif  // NORMD_SERVER_LOG_SERVER_LOG_H_
