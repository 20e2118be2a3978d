#include "base/buffer_pool.h"

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/pages.h"

namespace normd {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr int kSmallestLog2 = 8;
constexpr int kLargestLog2 = 46;  // Beyond an address space of 47 bits.
constexpr std::size_t kClasses = 4 * (kLargestLog2 - kSmallestLog2) + 1;
// From this size on blocks are mapped, so that the allocator's heap neither fragments nor keeps
// them.
constexpr std::size_t kMappedBytes = std::size_t{1} << 20;

// Class 0 holds up to 2^8 bytes; class 4j + i, i = 1..4, up to 2^(8 + j) * (1 + i / 4).
std::size_t ClassOf(std::size_t size) {
  if (size <= std::size_t{1} << kSmallestLog2) return 0;
  const int log2 = static_cast<int>(std::bit_width(size - 1)) - 1;
  const std::size_t steps = (size - 1 - (std::size_t{1} << log2)) >> (log2 - 2);
  return 4 * static_cast<std::size_t>(log2 - kSmallestLog2) + steps + 1;
}

std::size_t CapacityOf(std::size_t size_class) {
  if (size_class == 0) return std::size_t{1} << kSmallestLog2;
  const std::size_t power = std::size_t{1} << (kSmallestLog2 + (size_class - 1) / 4);
  return power + ((size_class - 1) % 4 + 1) * (power / 4);
}

// Null when the system has no memory.
std::byte* Allocate(std::size_t capacity) {
  return capacity < kMappedBytes ? static_cast<std::byte*>(std::aligned_alloc(kAlignment, capacity))
                                 : MapPages(capacity);
}

void Deallocate(std::byte* data, std::size_t capacity) {
  if (capacity < kMappedBytes) {
    std::free(data);
  } else {
    UnmapPages(data, capacity);
  }
}

}  // namespace

// One lock for all classes: it is held for a few instructions, never while the system maps memory.
struct BufferPool::Core {
  struct Block {
    explicit Block(std::size_t size_class_in)
        : data(Allocate(CapacityOf(size_class_in))), size_class(size_class_in) {}
    ~Block() {
      if (data != nullptr) Deallocate(data, CapacityOf(size_class));
    }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    std::byte* const data;  // Null if the system had none.
    const std::size_t size_class;
    // The time of its return, on the core's counter; decides which is the oldest.
    std::uint64_t returned = 0;
    std::shared_ptr<Core> core;  // Set while the block is in use. shared: it may outlive the pool.
  };
  using Blocks = std::deque<std::unique_ptr<Block>>;

  explicit Core(std::int64_t max_free_bytes) : max_free(max_free_bytes) {}

  // Lends the block, which the caller owns until Return.
  static Block* Lend(const std::shared_ptr<Core>& core, std::size_t size_class);
  static void Return(Block* block);
  void TrimTo(std::int64_t bytes, std::vector<std::unique_ptr<Block>>& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void TakeOldest(Blocks& blocks, std::vector<std::unique_ptr<Block>>& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  Mutex mutex;
  std::int64_t max_free ABSL_GUARDED_BY(mutex);
  std::uint64_t returns ABSL_GUARDED_BY(mutex) = 0;
  std::array<Blocks, kClasses> free_blocks ABSL_GUARDED_BY(mutex);  // The oldest in front.
  // `returns` at the last Trim.
  std::uint64_t trimmed_at ABSL_GUARDED_BY(mutex) = 0;
  // Atomic for readers without the lock. Relaxed: they only need the values.
  std::atomic<std::int64_t> used_bytes{0};
  std::atomic<std::int64_t> free_bytes{0};
};

BufferPool::Core::Block* BufferPool::Core::Lend(const std::shared_ptr<Core>& core,
                                                std::size_t size_class) {
  const auto capacity = static_cast<std::int64_t>(CapacityOf(size_class));
  std::unique_ptr<Block> block;
  {
    MutexLock lock(core->mutex);
    Blocks& blocks = core->free_blocks[size_class];
    if (!blocks.empty()) {
      // The most recently used one: the caches may still hold it.
      block = std::move(blocks.back());
      blocks.pop_back();
      core->free_bytes.fetch_sub(capacity, std::memory_order_relaxed);
    }
  }
  if (block == nullptr) {
    block = std::make_unique<Block>(size_class);
    if (block->data == nullptr) return nullptr;
  }
  core->used_bytes.fetch_add(capacity, std::memory_order_relaxed);
  block->core = core;
  return block.release();
}

void BufferPool::Core::Return(Block* returned) {
  std::unique_ptr<Block> block(returned);
  const std::shared_ptr<Core> core = std::move(block->core);
  const auto capacity = static_cast<std::int64_t>(CapacityOf(block->size_class));
  std::vector<std::unique_ptr<Block>> surplus;  // Unmapped after the lock.
  core->used_bytes.fetch_sub(capacity, std::memory_order_relaxed);
  MutexLock lock(core->mutex);
  if (capacity > core->max_free) {
    surplus.push_back(std::move(block));
    return;
  }
  core->TrimTo(core->max_free - capacity, surplus);
  block->returned = core->returns++;
  core->free_blocks[block->size_class].push_back(std::move(block));
  core->free_bytes.fetch_add(capacity, std::memory_order_relaxed);
}

void BufferPool::Core::TrimTo(std::int64_t bytes, std::vector<std::unique_ptr<Block>>& out) {
  while (free_bytes.load(std::memory_order_relaxed) > bytes) {
    Blocks* oldest = nullptr;
    for (Blocks& blocks : free_blocks) {
      if (blocks.empty()) continue;
      if (oldest == nullptr || blocks.front()->returned < oldest->front()->returned) {
        oldest = &blocks;
      }
    }
    TakeOldest(*oldest, out);
  }
}

void BufferPool::Core::TakeOldest(Blocks& blocks, std::vector<std::unique_ptr<Block>>& out) {
  free_bytes.fetch_sub(static_cast<std::int64_t>(CapacityOf(blocks.front()->size_class)),
                       std::memory_order_relaxed);
  out.push_back(std::move(blocks.front()));
  blocks.pop_front();
}

BufferPool::BufferPool(std::int64_t max_free_bytes)
    : core_(std::make_shared<Core>(max_free_bytes)) {}

BufferPool::~BufferPool() {
  std::vector<std::unique_ptr<Core::Block>> kept;
  MutexLock lock(core_->mutex);
  core_->max_free = -1;
  core_->TrimTo(0, kept);
}

absl::StatusOr<Buffer> BufferPool::Take(std::int64_t size) {
  if (size <= 0) return Buffer();
  const auto bytes = static_cast<std::size_t>(size);
  Core::Block* block =
      bytes > std::size_t{1} << kLargestLog2 ? nullptr : Core::Lend(core_, ClassOf(bytes));
  if (block == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("output: the system has no ", size, " bytes of memory for it"));
  }
  return Buffer(block->data, bytes, [block] { Core::Return(block); });
}

void BufferPool::Trim() {
  std::vector<std::unique_ptr<Core::Block>> unneeded;  // Unmapped after the lock.
  MutexLock lock(core_->mutex);
  for (Core::Blocks& blocks : core_->free_blocks) {
    while (!blocks.empty() && blocks.front()->returned < core_->trimmed_at) {
      core_->TakeOldest(blocks, unneeded);
    }
  }
  core_->trimmed_at = core_->returns;
}

std::int64_t BufferPool::used_bytes() const {
  return core_->used_bytes.load(std::memory_order_relaxed);
}

std::int64_t BufferPool::free_bytes() const {
  return core_->free_bytes.load(std::memory_order_relaxed);
}

}  // namespace normd
