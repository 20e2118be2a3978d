#include "server/exec/executor.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <atomic>
#include <cassert>
#include <map>
#include <new>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

// A counting semaphore. The standard library's may lose a wake-up in g++ 12 (GCC bug 98033).
// Thread-safe.
class Semaphore {
 public:
  explicit Semaphore(int count) : count_(count) {}
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;

  // Waits until the count is positive, and takes one from it.
  void Acquire() {
    MutexLock lock(mutex_);
    while (count_ == 0) released_.Wait(mutex_);
    --count_;
  }
  void Release() {
    {
      MutexLock lock(mutex_);
      ++count_;
    }
    released_.SignalOne();
  }

 private:
  Mutex mutex_;
  CondVar released_;
  int count_ ABSL_GUARDED_BY(mutex_);
};

void NameThisThread(const std::string& name) {
  constexpr std::size_t kMaxBytes = 15;  // The kernel refuses longer names.
  pthread_setname_np(pthread_self(), name.substr(0, kMaxBytes).c_str());
}

// A lane's turn to take a batch: kept between batches, unless a batch turns out to be large.
class LaneTurn {
 public:
  explicit LaneTurn(Semaphore& turns) : turns_(turns) {}

  void Begin() {
    if (!std::exchange(has_begun_, true)) turns_.Acquire();
  }
  void End() {
    if (std::exchange(has_begun_, false)) turns_.Release();
  }

 private:
  Semaphore& turns_;
  bool has_begun_ = false;
};

}  // namespace

struct Executor::Impl {
  Impl(std::vector<std::unique_ptr<Lane>> lanes_in, BatchQueue& queue_in,
       std::vector<std::unique_ptr<Lane>> inline_lanes_in, int small_lanes)
      : lanes(std::move(lanes_in)),
        inline_lanes(std::move(inline_lanes_in)),
        queue(queue_in),
        working(static_cast<int>(lanes.size())) {
    for (const std::unique_ptr<Lane>& lane : lanes) {
      turns.try_emplace(lane->device(),
                        small_lanes > 0 ? small_lanes : static_cast<int>(lanes.size()));
    }
  }

  void Run(Lane& lane);
  void Retire(Lane& lane, const absl::Status& error);

  const std::vector<std::unique_ptr<Lane>> lanes;
  const std::vector<std::unique_ptr<Lane>> inline_lanes;
  std::map<std::string, Semaphore> turns;  // By device; the map is constant.
  BatchQueue& queue;
  std::function<void(const absl::Status&)> on_last_lane_retired;
  std::atomic<int> working;
  std::vector<std::thread> threads;
};

Executor::Executor(std::vector<std::unique_ptr<Lane>> lanes, BatchQueue& queue,
                   std::vector<std::unique_ptr<Lane>> inline_lanes, int small_lanes)
    : impl_(std::make_unique<Impl>(std::move(lanes), queue, std::move(inline_lanes), small_lanes)) {
  assert(!impl_->lanes.empty());
}

Executor::~Executor() { assert(impl_->threads.empty() && "Executor destroyed before Join"); }

void Executor::Start(std::function<void(const absl::Status&)> on_last_lane_retired) {
  impl_->on_last_lane_retired = std::move(on_last_lane_retired);
  for (const std::unique_ptr<Lane>& lane : impl_->lanes) {
    impl_->threads.emplace_back([this, &lane] { impl_->Run(*lane); });
  }
  std::vector<BatchRunner*> runners;
  for (const std::unique_ptr<Lane>& lane : impl_->inline_lanes) runners.push_back(lane.get());
  impl_->queue.RunInlineOn(std::move(runners));
  impl_->threads.emplace_back([this] {
    NameThisThread("reaper");
    impl_->queue.Reap();
  });
}

void Executor::Join() {
  for (std::thread& thread : impl_->threads) thread.join();
  impl_->threads.clear();
  impl_->queue.RunInlineOn({});
}

std::vector<std::string> Executor::lane_names() const {
  std::vector<std::string> names;
  for (const std::unique_ptr<Lane>& lane : impl_->lanes) names.push_back(lane->name());
  return names;
}

int Executor::working_lanes() const { return impl_->working.load(std::memory_order_relaxed); }

void Executor::Impl::Run(Lane& lane) {
  NameThisThread("lane " + lane.name());
  // A lane that waits for a device naps for microseconds; the kernel's slack would add fifty.
  prctl(PR_SET_TIMERSLACK, 1);
  LaneTurn turn(turns.at(lane.device()));
  lane.OnLargeBatch([&turn] { turn.End(); });
  absl::Status status;
  while (status.ok()) {
    turn.Begin();
    try {
      std::unique_ptr<Batch> batch = queue.Take();
      if (batch == nullptr) break;
      status = lane.Execute(std::move(batch));
    } catch (const std::bad_alloc&) {
      // The requests have ended with their batch, and the next one may find memory.
    }
  }
  turn.End();
  lane.OnLargeBatch({});
  lane.Flush();
  if (!status.ok()) Retire(lane, status);
}

void Executor::Impl::Retire(Lane& lane, const absl::Status& error) {
  // Acquire and release: the last lane's callback comes after everything that the others did.
  const int left = working.fetch_sub(1, std::memory_order_acq_rel) - 1;
  spdlog::error("lane {} retires, {} of {} left: {}", lane.name(), left, lanes.size(),
                error.ToString());
  if (left == 0 && on_last_lane_retired) on_last_lane_retired(error);
}

}  // namespace normd
