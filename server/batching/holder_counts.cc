#include "server/batching/holder_counts.h"

namespace normd {

HolderCounts::Holder::Holder() : rank_node(NewNode<Ranks>()), key_node(NewNode<ByKey>()) {}

void HolderCounts::Reserve(Spares& spares) {
  if (spares.holders_.empty()) spares.holders_.emplace_back();
}

void HolderCounts::Add(Entry& entry, std::uint64_t holder, bool may_be_dropped, Spares& spares) {
  entry.holder_ = nullptr;
  if (holder == 0) return;
  const auto known = by_key_.find(holder);
  if (known == by_key_.end()) {
    const auto fresh = spares.holders_.begin();
    holders_.splice(holders_.end(), spares.holders_, fresh);
    fresh->key_node.key() = holder;
    fresh->key_node.mapped() = fresh;
    by_key_.insert(std::move(fresh->key_node));
    entry.holder_ = &*fresh;
  } else {
    entry.holder_ = &*known->second;
  }
  Holder& counted = *entry.holder_;
  ++counted.waiting;
  if (!may_be_dropped) return;
  counted.droppable.splice(counted.droppable.end(), entry.link_);
  Rank(counted, counted.droppable.size() - 1);
}

void HolderCounts::Remove(Entry& entry, std::uint64_t holder, Spares& spares) {
  if (entry.holder_ == nullptr) return;
  Holder& counted = *std::exchange(entry.holder_, nullptr);
  if (entry.link_.empty()) {
    entry.link_.splice(entry.link_.end(), counted.droppable, entry.linked_);
    Rank(counted, counted.droppable.size() + 1);
  }
  if (--counted.waiting > 0) return;
  const auto found = by_key_.find(holder);
  spares.holders_.splice(spares.holders_.begin(), holders_, found->second);
  counted.key_node = by_key_.extract(found);
}

std::int64_t HolderCounts::WaitingOf(std::uint64_t holder) const {
  const auto found = by_key_.find(holder);
  return found == by_key_.end() ? 0 : found->second->waiting;
}

void HolderCounts::Rank(Holder& holder, std::size_t count_before) {
  if (count_before > 0) {
    holder.rank_node = ranks_.extract({static_cast<std::int64_t>(count_before), &holder});
  }
  if (holder.droppable.empty()) return;
  holder.rank_node.value() = {static_cast<std::int64_t>(holder.droppable.size()), &holder};
  ranks_.insert(std::move(holder.rank_node));
}

}  // namespace normd
