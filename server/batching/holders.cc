#include "server/batching/holders.h"

#include "absl/hash/hash.h"

namespace normd {

namespace {

// A client that calls again and again comes and goes with each call: so many of a shard's holders
// stay, though nothing is theirs, because to make one costs more than all else here.
constexpr std::size_t kKept = 16;

}  // namespace

std::uint64_t HolderOf(const Caller& caller) {
  const absl::string_view peer = caller[static_cast<std::size_t>(HolderKind::kPeer)];
  // Odd, because 0 means nobody.
  return peer.empty() ? 0 : std::uint64_t{absl::Hash<absl::string_view>()(peer)} | 1;
}

HolderTable::Shard& HolderTable::ShardOf(absl::string_view name) {
  return shards_[absl::Hash<absl::string_view>()(name) % kShards];
}

Holding* HolderTable::Enter(absl::string_view name) {
  Shard& shard = ShardOf(name);
  MutexLock lock(shard.mutex);
  auto found = shard.holdings.find(name);
  if (found == shard.holdings.end()) {
    found = shard.holdings.try_emplace(std::string(name)).first;
    found->second.name_ = found->first;
  }
  ++found->second.references_;
  return &found->second;
}

void HolderTable::Leave(Holding* holding) {
  // Stays while this reference does, and the name is part of it.
  Shard& shard = ShardOf(holding->name_);
  MutexLock lock(shard.mutex);
  if (--holding->references_ > 0 || shard.holdings.size() <= kKept) return;
  shard.holdings.erase(shard.holdings.find(holding->name_));
}

std::size_t HolderTable::size() const {
  std::size_t size = 0;
  for (const Shard& shard : shards_) {
    MutexLock lock(shard.mutex);
    for (const auto& [name, holding] : shard.holdings) size += holding.references_ > 0;
  }
  return size;
}

}  // namespace normd
