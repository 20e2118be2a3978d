#include "client/normctl/progress_bar.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_format.h"

namespace normd::client {
namespace {

constexpr int kCells = 24;
constexpr Duration kBetweenLines = std::chrono::milliseconds(100);

}  // namespace

std::string ProgressLine(std::int64_t done_bytes, std::int64_t total_bytes, Duration elapsed) {
  const double done = static_cast<double>(done_bytes);
  const double total = static_cast<double>(total_bytes);
  const double part = total_bytes > 0 ? done / total : 1;
  const int cells = static_cast<int>(part * kCells);
  std::string bar(static_cast<std::size_t>(cells), '=');
  if (cells < kCells) bar += '>';
  bar.resize(kCells, ' ');
  const double seconds = std::chrono::duration<double>(elapsed).count();
  const double rate = seconds > 0 ? done / seconds : 0;
  std::string line =
      absl::StrFormat("[%s] %3d%%  %.2f of %.2f GB  %.2f GB/s", bar, static_cast<int>(part * 100),
                      done / 1e9, total / 1e9, rate / 1e9);
  if (rate > 0 && done_bytes < total_bytes) {
    absl::StrAppendFormat(&line, "  %.1f s left", (total - done) / rate);
  }
  return line;
}

void ProgressBar::Update(std::int64_t done_bytes, std::int64_t total_bytes) {
  if (out_ == nullptr) return;
  const TimePoint now = clock_.Now();
  if (width_ > 0 && now - drawn_ < kBetweenLines && done_bytes < total_bytes) return;
  drawn_ = now;
  std::string line = ProgressLine(done_bytes, total_bytes, now - begin_);
  const std::size_t width = line.size();
  line.resize(std::max(width, width_), ' ');
  *out_ << "\r" << line << std::flush;
  width_ = width;
}

ProgressBar::~ProgressBar() {
  if (width_ > 0) *out_ << "\r" << std::string(width_, ' ') << "\r" << std::flush;
}

}  // namespace normd::client
