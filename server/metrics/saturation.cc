#include "server/metrics/saturation.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace normd {
namespace {

// gRPC's name for the threads that take events off its completion queues and run handlers.
constexpr char kHandlerThread[] = "nexting_thread";
constexpr Duration kShortest = std::chrono::seconds(10);

double Share(Duration part, Duration whole) {
  if (whole <= Duration(0)) return 0;
  return std::clamp(static_cast<double>(part.count()) / static_cast<double>(whole.count()), 0.0,
                    1.0);
}

}  // namespace

Saturation::Saturation(std::function<Duration()> no_lane_time, const Clock& clock, std::string proc)
    : no_lane_time_(std::move(no_lane_time)),
      clock_(clock),
      proc_(std::move(proc)),
      older_(Read()),
      newer_(older_) {}

double Saturation::Ratio() {
  const Reading now = Read();
  MutexLock lock(mutex_);
  if (now.at - newer_.at >= kShortest) older_ = std::exchange(newer_, now);
  const Duration whole = now.at - older_.at;
  return std::max(Share(now.busy - older_.busy, whole), Share(now.no_lane - older_.no_lane, whole));
}

Saturation::Reading Saturation::Read() const { return {clock_.Now(), BusyTime(), no_lane_time_()}; }

// Threads that sleep are free. The first two numbers of a thread's schedstat are the nanoseconds
// for which it has run and for which it was ready to run and waited.
Duration Saturation::BusyTime() const {
  std::int64_t threads = 0;
  std::int64_t nanoseconds = 0;
  std::error_code error;
  std::filesystem::directory_iterator task(proc_ + "/self/task", error);
  for (; !error && task != std::filesystem::directory_iterator(); task.increment(error)) {
    std::string name;
    std::ifstream(task->path() / "comm") >> name;
    std::int64_t ran = 0;
    std::int64_t waited = 0;
    if (name != kHandlerThread) continue;
    if (!(std::ifstream(task->path() / "schedstat") >> ran >> waited)) continue;
    ++threads;
    nanoseconds += ran + waited;
  }
  return Duration(threads == 0 ? 0 : nanoseconds / threads);
}

}  // namespace normd
