// What lanes of benchmarks share that take their time and then let another lane compute.

#ifndef NORMD_TESTS_BENCH_LANE_AROUND_H_
#define NORMD_TESTS_BENCH_LANE_AROUND_H_

#include <memory>
#include <string>
#include <utility>

#include "server/exec/lane.h"

namespace normd {

// Has the inner lane's name and device. What it does around a batch is the derived class's Execute.
class LaneAround : public Lane {
 public:
  explicit LaneAround(std::unique_ptr<Lane> inner) : inner_(std::move(inner)) {}

  const std::string& name() const final { return inner_->name(); }
  const std::string& device() const final { return inner_->device(); }
  void Flush() final { inner_->Flush(); }

 protected:
  Lane& inner() { return *inner_; }

 private:
  const std::unique_ptr<Lane> inner_;
};

}  // namespace normd

#endif  // NORMD_TESTS_BENCH_LANE_AROUND_H_
