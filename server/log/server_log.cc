#include "server/log/server_log.h"

#include <unistd.h>

#include <array>
#include <exception>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
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

std::string DescribeLost(std::int64_t lost) {
  std::string line = absl::StrCat(lost, " log lines were lost: stderr was not read fast enough");
  spdlog::memory_buf_t formatted;
  spdlog::pattern_formatter().format(spdlog::details::log_msg("normd", spdlog::level::warn, line),
                                     formatted);
  return {formatted.data(), formatted.size()};
}

std::shared_ptr<LineWriter> MakeWriter(int fd) {
  LineWriterOptions options;
  options.linger = Duration(0);  // ~ServerLog has waited.
  options.describe_lost = DescribeLost;
  return std::make_shared<LineWriter>(fd, std::move(options));
}

}  // namespace

ServerLog::ServerLog(int fd, const std::string& level) : writer_(MakeWriter(fd)) {
  const bool in_color = isatty(fd) != 0 && spdlog::details::os::is_color_terminal();
  auto logger =
      std::make_shared<spdlog::logger>("normd", std::make_shared<LineSink>(writer_, in_color));
  logger->set_level(spdlog::level::from_str(level));
  // spdlog's own handler writes to stderr, and waits for it.
  logger->set_error_handler([writer = writer_](const std::string& error) {
    writer->Write(absl::StrCat("[normd] a line could not be logged: ", error, "\n"));
  });
  spdlog::set_default_logger(std::move(logger));
}

ServerLog::~ServerLog() { Flush(); }

void ServerLog::WriteRequestLine(absl::string_view line) noexcept {
  try {
    writer_->Write(absl::StrCat(line, "\n"), LineWriter::Share::kHalf);
  } catch (const std::exception&) {
    // No memory for the line's end: the line is lost.
  }
}

void ServerLog::Flush() { writer_->Flush(kLinger); }

}  // namespace normd
