// Lanes that a test drives: one computes nothing, one fails, one stalls.

#ifndef NORMD_TESTS_SUPPORT_TEST_LANES_H_
#define NORMD_TESTS_SUPPORT_TEST_LANES_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "server/exec/lane.h"

namespace normd {

// Has no thread: holds the batches of Execute until the test completes them, like a lane that works
// asynchronously. Outputs are empty. Not thread-safe.
class PuppetLane final : public Lane {
 public:
  explicit PuppetLane(std::string name = "puppet:0") : name_(std::move(name)) {}
  // Everything must be completed.
  ~PuppetLane() override;

  const std::string& name() const override { return name_; }
  const std::string& device() const override { return device_; }
  absl::Status Execute(std::unique_ptr<Batch> batch) override;
  void Flush() override;

  std::size_t held() const { return held_.size(); }
  // The first batch of Execute that is not completed.
  const Batch& front() const { return *held_.front(); }
  void CompleteFront(const absl::Status& status = absl::OkStatus());

 private:
  const std::string name_;
  const std::string device_ = "puppet";
  std::deque<std::unique_ptr<Batch>> held_;
};

// Does the inner lane's work, but fails with `error` at batch `fail_at` (the first is 0) and every
// later one: these end with INTERNAL and the error's RetryAfterOf, without being computed.
class FaultyLane final : public Lane {
 public:
  FaultyLane(std::unique_ptr<Lane> inner, int fail_at, absl::Status error)
      : inner_(std::move(inner)), fail_at_(fail_at), error_(std::move(error)) {}

  const std::string& name() const override { return inner_->name(); }
  const std::string& device() const override { return inner_->device(); }
  absl::Status Execute(std::unique_ptr<Batch> batch) override;
  void Flush() override { inner_->Flush(); }

 private:
  const std::unique_ptr<Lane> inner_;
  const int fail_at_;
  const absl::Status error_;
  int batches_ = 0;
};

// Opens and closes PausingLanes. Thread-safe.
class Gate {
 public:
  void Open();
  void Close();
  // Waits until `lanes` are at the closed gate.
  void WaitForStalled(int lanes);
  // Waits until the gate is open.
  void Pass();

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  int stalled_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Does the inner lane's work, but each batch first passes `gate`, which outlives the lane.
class PausingLane final : public Lane {
 public:
  PausingLane(std::unique_ptr<Lane> inner, Gate& gate) : inner_(std::move(inner)), gate_(gate) {}

  const std::string& name() const override { return inner_->name(); }
  const std::string& device() const override { return inner_->device(); }
  absl::Status Execute(std::unique_ptr<Batch> batch) override;
  void Flush() override { inner_->Flush(); }

 private:
  const std::unique_ptr<Lane> inner_;
  Gate& gate_;
};

// Completes the cancelled requests of `batch` with CANCELLED, the others with `status` and an empty
// output.
void CompleteAll(std::unique_ptr<Batch> batch, const absl::Status& status, const std::string& lane);

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_TEST_LANES_H_
