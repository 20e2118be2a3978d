#include "server/log/server_log.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <exception>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/printable.h"
#include "nlohmann/json.hpp"
#include "spdlog/details/os.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

constexpr Duration kLinger = std::chrono::seconds(2);

// The colours of spdlog's own sinks, by level.
constexpr std::array<absl::string_view, spdlog::level::n_levels> kColors = {
    "\033[37m",        "\033[36m",        "\033[32m", "\033[33m\033[1m",
    "\033[31m\033[1m", "\033[1m\033[41m", ""};
constexpr absl::string_view kNoColor = "\033[m";

class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const spdlog::string_view_t level = spdlog::level::to_string_view(message.level);
    nlohmann::ordered_json line;
    line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::FromChrono(message.time),
                                    absl::UTCTimeZone());
    line["level"] = std::string(level.data(), level.size());
    line["message"] = std::string(message.payload.data(), message.payload.size());
    // Printable ASCII, whatever is in it. Replaces bytes that are no UTF-8, where the default would
    // throw.
    const std::string text =
        line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }
};

std::unique_ptr<spdlog::formatter> FormatterOf(LogFormat format) {
  if (format == LogFormat::kJson) return std::make_unique<JsonFormatter>();
  return std::make_unique<spdlog::pattern_formatter>("[%Y-%m-%dT%H:%M:%S.%eZ] [%n] [%^%l%$] %v",
                                                     spdlog::pattern_time_type::utc);
}

// A whole line for those who cannot log it.
std::string LineOf(LogFormat format, spdlog::level::level_enum level, const std::string& text) {
  spdlog::memory_buf_t formatted;
  FormatterOf(format)->format(spdlog::details::log_msg("normd", level, text), formatted);
  return {formatted.data(), formatted.size()};
}

// The mutex guards the formatter and is held across nothing that waits.
class LineSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  LineSink(std::shared_ptr<LineWriter> writer, bool in_color)
      : writer_(std::move(writer)), in_color_(in_color) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    const absl::string_view line(formatted.data(), formatted.size());
    const std::size_t begin = message.color_range_start;
    const std::size_t end = message.color_range_end;
    if (!in_color_ || begin >= end || end > line.size()) return writer_->Write(line);
    writer_->Write(absl::StrCat(line.substr(0, begin), kColors[message.level],
                                line.substr(begin, end - begin), kNoColor, line.substr(end)));
  }
  void flush_() override {}

  const std::shared_ptr<LineWriter> writer_;
  const bool in_color_;
};

std::shared_ptr<LineWriter> MakeWriter(int fd, LogFormat format) {
  LineWriterOptions options;
  options.linger = Duration(0);  // ~ServerLog has waited.
  options.describe_lost = [format](std::int64_t lost) {
    return LineOf(format, spdlog::level::warn,
                  absl::StrCat(lost, " log lines were lost: they were not taken fast enough"));
  };
  return std::make_shared<LineWriter>(fd, std::move(options));
}

}  // namespace

absl::StatusOr<Descriptor> OpenLogFile(const std::string& path) {
  constexpr mode_t kMode = 0640;
  Descriptor file(
      open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, kMode));
  if (file.valid()) return file;
  return absl::ErrnoToStatus(errno, absl::StrCat("--log_file: \"", Printable(path), "\""));
}

ServerLog::ServerLog(int fd, const std::string& level, LogFormat format)
    : fd_(fd), writer_(MakeWriter(fd, format)) {
  const bool in_color = isatty(fd) != 0 && spdlog::details::os::is_color_terminal();
  auto logger =
      std::make_shared<spdlog::logger>("normd", std::make_shared<LineSink>(writer_, in_color));
  logger->set_formatter(FormatterOf(format));
  logger->set_level(spdlog::level::from_str(level));
  // spdlog's own handler writes to stderr, and waits for it.
  logger->set_error_handler([writer = writer_, format](const std::string& error) {
    try {
      writer->Write(
          LineOf(format, spdlog::level::err, absl::StrCat("a line could not be logged: ", error)));
    } catch (const std::exception&) {
      writer->Lose();  // No memory for this line either.
    }
  });
  spdlog::set_default_logger(std::move(logger));
}

ServerLog::~ServerLog() { Flush(); }

void ServerLog::WriteRequestLine(absl::string_view line) noexcept {
  try {
    writer_->Write(absl::StrCat(line, "\n"), LineWriter::Share::kHalf);
  } catch (const std::exception&) {
    writer_->Lose();  // No memory for the line's end.
  }
}

void ServerLog::Reopen(const std::string& path) {
  const absl::StatusOr<Descriptor> file = OpenLogFile(path);
  // The writer's thread meets the one file or the other.
  if (file.ok() && dup3(file->get(), fd_, O_CLOEXEC) == fd_) return;
  spdlog::error("the log goes on where it was: {}",
                file.ok() ? strerror(errno) : std::string(file.status().message()));
}

void ServerLog::Flush() { writer_->Flush(kLinger); }

}  // namespace normd
