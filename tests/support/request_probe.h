// A request that records its end.

#ifndef NORMD_TESTS_SUPPORT_REQUEST_PROBE_H_
#define NORMD_TESTS_SUPPORT_REQUEST_PROBE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "server/batching/request.h"

namespace normd {

// Makes one request and watches it. Thread-safe. May be destroyed before the request ends.
class RequestProbe {
 public:
  // A tensor of `dims` and `dtype` for `model`; Check must accept it. The input is `bytes`, or
  // zeros when empty, in one piece.
  RequestProbe(std::shared_ptr<const Model> model, const std::vector<std::int64_t>& dims,
               norm::DType dtype = norm::DType::kFloat32, std::vector<std::byte> bytes = {});

  // The request, to be changed and pushed. Null once it has been moved on.
  std::unique_ptr<Request>& request() { return request_; }
  std::uint64_t id() const { return id_; }
  // A front end does the same when its client leaves, before BatchQueue::Cancel.
  void SetCancelled() { cancelled_->store(true); }
  // Runs within `done`, after the end is recorded.
  void OnDone(std::function<void()> hook);

  int done_calls() const;
  bool done() const { return done_calls() > 0; }
  // Waits for `done`.
  void Wait() const;
  // The ended request's completion. The input's owner is gone by then.
  const Completion& completion() const;
  absl::StatusCode code() const { return completion().status.code(); }
  bool input_released() const { return input_.expired(); }

 private:
  struct End {
    mutable Mutex mutex;
    mutable CondVar ended;
    int calls ABSL_GUARDED_BY(mutex) = 0;
    Completion completion ABSL_GUARDED_BY(mutex);
    std::function<void()> hook ABSL_GUARDED_BY(mutex);
  };

  std::uint64_t id_;
  std::shared_ptr<End> end_;  // shared: with the request's done.
  std::shared_ptr<std::atomic<bool>> cancelled_;
  std::weak_ptr<void> input_;
  std::unique_ptr<Request> request_;
};

// The probes' codes in order, for one comparison; kUnknown for one that has not ended.
std::vector<absl::StatusCode> Codes(const std::vector<std::unique_ptr<RequestProbe>>& probes);

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_REQUEST_PROBE_H_
