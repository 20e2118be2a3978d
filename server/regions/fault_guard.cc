#include "server/regions/fault_guard.h"

#include <signal.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <vector>

#include "base/mutex.h"

namespace normd {
namespace {

// A signal handler has no argument of ours, so it reads static data: a table that it reads without
// a lock while other threads change it.
//
// The slot of the range in which a thread faults does not change meanwhile, because that thread's
// request holds the range. A changing slot belongs to another range: its version is odd, or differs
// afterwards, and the handler skips it.
struct Slot {
  std::atomic<std::uint32_t> version{0};
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::size_t> size{0};  // 0: free.
  std::atomic<std::atomic<bool>*> broken{nullptr};
};
Slot slots[kMaxGuardedRanges];
std::atomic<std::size_t> slots_used{0};  // Later ones were never used.

struct sigaction previous_action = {};

void Write(Slot& slot, std::uintptr_t begin, std::size_t size, std::atomic<bool>* broken) {
  // Sequentially consistent: it is rare, and the order of the four matters.
  slot.version.fetch_add(1);
  slot.begin.store(begin);
  slot.size.store(size);
  slot.broken.store(broken);
  slot.version.fetch_add(1);
}

// Replaces the range around `address` by memory; false when there is no such range. Calls nothing
// but mmap, which is only a system call.
bool Mend(std::uintptr_t address) {
  const std::size_t used = slots_used.load();
  for (std::size_t i = 0; i < used; ++i) {
    const Slot& slot = slots[i];
    const std::uint32_t version = slot.version.load();
    const std::uintptr_t begin = slot.begin.load();
    const std::size_t size = slot.size.load();
    std::atomic<bool>* const broken = slot.broken.load();
    const bool steady = version % 2 == 0 && slot.version.load() == version;
    if (!steady || address < begin || address - begin >= size) continue;
    broken->store(true, std::memory_order_relaxed);
    // Only written pages take memory.
    return mmap(reinterpret_cast<void*>(begin), size, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
  }
  return false;
}

void OnBusError(int signal, siginfo_t* info, void*) {
  const int saved_errno = errno;
  const bool mended =
      info->si_code == BUS_ADRERR && Mend(reinterpret_cast<std::uintptr_t>(info->si_addr));
  errno = saved_errno;
  if (mended) return;
  sigaction(signal, &previous_action, nullptr);
  // The faulting instruction faults again. A signal that somebody sent does not come again.
  if (info->si_code <= 0) raise(signal);
}

// The free slots.
class FreeSlots {
 public:
  std::size_t Take() {
    MutexLock lock(mutex_);
    if (!installed_) Install();
    if (!free_.empty()) {
      const std::size_t slot = free_.back();
      free_.pop_back();
      return slot;
    }
    const std::size_t next = slots_used.load();
    if (next < kMaxGuardedRanges) slots_used.store(next + 1);
    return next;
  }
  void Return(std::size_t slot) {
    MutexLock lock(mutex_);
    free_.push_back(slot);
  }

 private:
  void Install() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    struct sigaction action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    installed_ = sigaction(SIGBUS, &action, &previous_action) == 0;
  }

  Mutex mutex_;
  bool installed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::size_t> free_ ABSL_GUARDED_BY(mutex_);
};

FreeSlots& Free() {
  static FreeSlots& free = *new FreeSlots;  // Never destroyed: regions may outlive main.
  return free;
}

}  // namespace

FaultGuard::FaultGuard(std::byte* begin, std::size_t size) : slot_(Free().Take()) {
  if (active()) Write(slots[slot_], reinterpret_cast<std::uintptr_t>(begin), size, &broken_);
}

FaultGuard::~FaultGuard() {
  if (!active()) return;
  Write(slots[slot_], 0, 0, nullptr);
  Free().Return(slot_);
}

}  // namespace normd
