#include "server/exec/device/pinned_pool.h"

#include <cassert>
#include <cstdint>
#include <map>
#include <utility>

#include "base/mutex.h"

namespace normd {

// The free runs by offset. A server holds at most some thousands of blocks at once and neighbours
// merge on release, so the search is short; the lock covers nothing else.
class PinnedPool::State {
 public:
  explicit State(Buffer memory) : memory_(std::move(memory)), free_bytes_(memory_.size()) {
    free_.emplace(0, memory_.size());
  }

  std::byte* Take(std::size_t bytes) {
    MutexLock lock(mutex_);
    for (auto run = free_.begin(); run != free_.end(); ++run) {
      if (run->second < bytes) continue;
      const auto [offset, length] = *run;
      free_.erase(run);
      if (length > bytes) free_.emplace(offset + bytes, length - bytes);
      free_bytes_ -= bytes;
      return memory_.data() + offset;
    }
    return nullptr;
  }

  void Return(const std::byte* data, std::size_t bytes) {
    MutexLock lock(mutex_);
    free_bytes_ += bytes;
    auto [run, inserted] = free_.emplace(static_cast<std::size_t>(data - memory_.data()), bytes);
    assert(inserted);
    static_cast<void>(inserted);
    if (const auto next = std::next(run);
        next != free_.end() && run->first + run->second == next->first) {
      run->second += next->second;
      free_.erase(next);
    }
    if (run != free_.begin()) {
      const auto previous = std::prev(run);
      if (previous->first + previous->second == run->first) {
        previous->second += run->second;
        free_.erase(run);
      }
    }
  }

  PoolUse use() const {
    MutexLock lock(mutex_);
    return {static_cast<std::int64_t>(memory_.size() - free_bytes_),
            static_cast<std::int64_t>(free_bytes_)};
  }

 private:
  Buffer memory_;  // Constant after construction.

  mutable Mutex mutex_;
  std::map<std::size_t, std::size_t> free_ ABSL_GUARDED_BY(mutex_);  // Offset to length.
  std::size_t free_bytes_ ABSL_GUARDED_BY(mutex_);
};

PinnedPool::PinnedPool(std::shared_ptr<State> state) : state_(std::move(state)) {}
PinnedPool::~PinnedPool() = default;

absl::StatusOr<std::unique_ptr<PinnedPool>> PinnedPool::Create(Device& device, std::size_t bytes) {
  absl::StatusOr<Buffer> memory = device.Allocate(MemoryKind::kPinned, AlignForDevice(bytes));
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<PinnedPool>(new PinnedPool(std::make_shared<State>(*std::move(memory))));
}

std::optional<Buffer> PinnedPool::Take(std::size_t bytes) {
  const std::size_t rounded = AlignForDevice(bytes == 0 ? 1 : bytes);
  std::byte* data = state_->Take(rounded);
  if (data == nullptr) return std::nullopt;
  return Buffer(data, bytes, [state = state_, data, rounded] { state->Return(data, rounded); });
}

PoolUse PinnedPool::use() const { return state_->use(); }

bool PinnedPool::IsScarce() const {
  const PoolUse now = state_->use();
  return now.free_bytes < (now.free_bytes + now.used_bytes) / 8;
}

}  // namespace normd
