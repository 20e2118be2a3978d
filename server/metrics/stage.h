// The stages of a request on the server, and the times that it spent in them.

#ifndef NORMD_SERVER_METRICS_STAGE_H_
#define NORMD_SERVER_METRICS_STAGE_H_

#include <array>
#include <cstddef>

#include "base/clock.h"

namespace normd {

enum class Stage { kDecode, kQueue, kGather, kCopyIn, kCompute, kCopyOut, kEncode };
inline constexpr std::size_t kStageCount = 7;

// Zero: the stage did not happen.
class StageTimes {
 public:
  Duration operator[](Stage stage) const { return times_[static_cast<std::size_t>(stage)]; }
  Duration& operator[](Stage stage) { return times_[static_cast<std::size_t>(stage)]; }

 private:
  std::array<Duration, kStageCount> times_{};
};

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_STAGE_H_
