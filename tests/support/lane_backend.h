// The interface between the tests of every lane and the lanes: the same bodies run on the CPU, on a
// fake device and on CUDA. Each test program links exactly one implementation.

#ifndef NORMD_TESTS_SUPPORT_LANE_BACKEND_H_
#define NORMD_TESTS_SUPPORT_LANE_BACKEND_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/exec/lane.h"
#include "server/model/model.h"
#include "tests/support/lane_request.h"

namespace normd {

class LaneBackend {
 public:
  virtual ~LaneBackend() = default;

  virtual Lane& lane() = 0;
  virtual absl::StatusOr<std::unique_ptr<BackendState>> Prepare(const Model& model) = 0;
  virtual Closeness closeness() const = 0;
  // More than the lane gathers, copies or computes at once, and no more than it takes.
  virtual std::int64_t LargeBytes() const = 0;
};

// The paths of a batch, such as "Copied" and "Mapped".
std::vector<std::string> LanePaths();

// Null if this machine lacks the device; tests then skip.
std::unique_ptr<LaneBackend> MakeLaneBackend(const std::string& path);

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_LANE_BACKEND_H_
