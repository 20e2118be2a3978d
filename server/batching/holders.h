// Who holds what of the server's budgets.

#ifndef NORMD_SERVER_BATCHING_HOLDERS_H_
#define NORMD_SERVER_BATCHING_HOLDERS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/node_hash_map.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace normd {

// What a budget is of.
enum class Resource { kRequests, kBytes, kChunkBytes };
inline constexpr std::size_t kResourceCount = 3;

// The groups that a request counts in, from the narrowest to the widest. Each has a share.
enum class HolderKind { kConnection, kPeer };
inline constexpr std::size_t kHolderKindCount = 2;

// Names a request's holder of each kind; an empty name counts nowhere.
using Caller = std::array<absl::string_view, kHolderKindCount>;

// Request::holder of a caller: its peer's. The hash is seeded anew in each process, so nobody can
// choose an address that counts as another.
std::uint64_t HolderOf(const Caller& caller);

// What one holder has at the moment.
struct Holding {
  // Relaxed: they guard no memory, and a share is judged by what was there before an addition.
  std::array<std::atomic<std::int64_t>, kResourceCount> amounts{};
  std::uint64_t last_overdraft = 0;  // Guarded by the lock of whoever grants overdrafts.

  std::atomic<std::int64_t>& operator[](Resource resource) {
    return amounts[static_cast<std::size_t>(resource)];
  }

 private:
  friend class HolderTable;
  absl::string_view name_;       // The key's.
  std::int64_t references_ = 0;  // Guarded by the shard's lock.
};

// The holders of one kind. Thread-safe; each call takes one short lock, that of the name's shard. A
// holder is there while something is its own, and there are no more than requests inside, and 256.
class HolderTable {
 public:
  // Finds or makes it. It stays until each Enter has had its Leave. May throw std::bad_alloc.
  Holding* Enter(absl::string_view name);
  void Leave(Holding* holding);

  std::size_t size() const;  // Of those with something.

 private:
  static constexpr std::size_t kShards = 16;
  struct alignas(64) Shard {
    mutable Mutex mutex;
    // Nodes: a Holding and its key stay where they are.
    absl::node_hash_map<std::string, Holding> holdings ABSL_GUARDED_BY(mutex);
  };
  Shard& ShardOf(absl::string_view name);

  std::array<Shard, kShards> shards_;
};

}  // namespace normd

#endif  // NORMD_SERVER_BATCHING_HOLDERS_H_
