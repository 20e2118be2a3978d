#include "server/net/delivered_bytes.h"

#include "absl/hash/hash.h"

namespace normd {

DeliveredBytes::Shard& DeliveredBytes::ShardOf(absl::string_view peer) {
  return shards_[absl::HashOf(peer) % shards_.size()];
}

std::shared_ptr<DeliveredCounts> DeliveredBytes::Begin(const std::string& peer) {
  auto counts = std::make_shared<DeliveredCounts>();
  Shard& shard = ShardOf(peer);
  MutexLock lock(shard.mutex);
  shard.counts[peer] = counts;
  return counts;
}

void DeliveredBytes::End(const std::string& peer, const DeliveredCounts* counts) {
  Shard& shard = ShardOf(peer);
  MutexLock lock(shard.mutex);
  const auto found = shard.counts.find(peer);
  if (found != shard.counts.end() && found->second.get() == counts) shard.counts.erase(found);
}

std::shared_ptr<DeliveredCounts> DeliveredBytes::Find(absl::string_view peer) {
  Shard& shard = ShardOf(peer);
  MutexLock lock(shard.mutex);
  const auto found = shard.counts.find(peer);
  return found != shard.counts.end() ? found->second : nullptr;
}

void DeliveredBytes::Record(absl::string_view peer, std::int64_t message_bytes) {
  Shard& shard = ShardOf(peer);
  MutexLock lock(shard.mutex);
  const auto found = shard.counts.find(peer);
  if (found != shard.counts.end()) found->second->Add(message_bytes);
}

}  // namespace normd
