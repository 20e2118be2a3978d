// Objects that can be found by their names for as long as they are in use.

#ifndef NORMD_SERVER_CALLERS_WEAK_TABLE_H_
#define NORMD_SERVER_CALLERS_WEAK_TABLE_H_

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace normd {

// T has a constant `name`, which is not empty. Thread-safe; outlives the objects that it returns. A
// call takes one short lock, that of the name's shard. An unused object leaves nothing behind.
template <typename T>
class WeakTable {
 public:
  // Null when none is in use.
  std::shared_ptr<T> Find(absl::string_view name) {
    Shard& shard = ShardOf(name);
    MutexLock lock(shard.mutex);
    const auto found = shard.entries.find(name);
    return found != shard.entries.end() ? found->second.lock() : nullptr;
  }

  // If one of that name is in use, returns that one and drops `object`. May throw std::bad_alloc.
  std::shared_ptr<T> Add(std::unique_ptr<T> object) { return Put(std::move(object), false); }
  // From here on the name is `object`'s; holders of another object of that name keep it.
  std::shared_ptr<T> Replace(std::unique_ptr<T> object) { return Put(std::move(object), true); }

  std::size_t size() const {
    std::size_t size = 0;
    for (const Shard& shard : shards_) {
      MutexLock lock(shard.mutex);
      size += shard.entries.size();
    }
    return size;
  }

 private:
  // Seeded per process, so that nobody can choose names that meet in one bucket.
  struct NameHash {
    using is_transparent = void;
    std::size_t operator()(absl::string_view name) const {
      return absl::Hash<absl::string_view>()(name);
    }
  };
  struct alignas(64) Shard {
    mutable Mutex mutex;
    // The standard library's map survives a failed allocation. weak: the users hold the objects.
    std::unordered_map<std::string, std::weak_ptr<T>, NameHash, std::equal_to<>> entries
        ABSL_GUARDED_BY(mutex);
  };

  // By its last character: ports of connections differ there.
  Shard& ShardOf(absl::string_view name) {
    return shards_[static_cast<unsigned char>(name.back()) % shards_.size()];
  }

  std::shared_ptr<T> Put(std::unique_ptr<T> object, bool replaces) {
    // Made before the lock, and so dropped after it: its end takes the lock.
    const std::shared_ptr<T> added(object.release(), [this](T* gone) {
      Forget(gone->name);
      delete gone;
    });
    Shard& shard = ShardOf(added->name);
    MutexLock lock(shard.mutex);
    std::weak_ptr<T>& entry = shard.entries[added->name];
    if (!replaces) {
      if (std::shared_ptr<T> other = entry.lock()) return other;
    }
    entry = added;
    return added;
  }

  // No effect when the name is another's by now.
  void Forget(absl::string_view name) {
    Shard& shard = ShardOf(name);
    MutexLock lock(shard.mutex);
    const auto found = shard.entries.find(name);
    if (found != shard.entries.end() && found->second.expired()) shard.entries.erase(found);
  }

  std::array<Shard, 16> shards_;
};

}  // namespace normd

#endif  // NORMD_SERVER_CALLERS_WEAK_TABLE_H_
