#include "client/capacity/balancer.h"

#include <algorithm>
#include <bit>

namespace normd::capacity {
namespace {

constexpr std::size_t kWordBits = 64;

std::uint64_t Bit(std::size_t server) { return std::uint64_t{1} << (server % kWordBits); }

// The first bit that is set in [begin, end).
std::optional<std::size_t> FirstIn(const std::vector<std::uint64_t>& bits, std::size_t begin,
                                   std::size_t end) {
  for (std::size_t at = begin; at < end; at = (at / kWordBits + 1) * kWordBits) {
    const std::uint64_t word = bits[at / kWordBits] >> (at % kWordBits);
    if (word == 0) continue;
    const std::size_t found = at + static_cast<std::size_t>(std::countr_zero(word));
    if (found < end) return found;
    break;
  }
  return std::nullopt;
}

}  // namespace

Balancer::Balancer(client::BalancePolicy policy, std::size_t servers, std::size_t first)
    : policy_(policy),
      servers_(servers),
      turn_(servers == 0 ? 0 : first % servers),
      outstanding_(servers, 0),
      up_(servers, true) {
  for (std::size_t i = 0; i < servers; ++i) Enter(i);
}

void Balancer::Enter(std::size_t server) {
  const std::size_t level = LevelOf(server);
  while (levels_.size() <= level) {
    levels_.push_back({std::vector<std::uint64_t>((servers_ + kWordBits - 1) / kWordBits), 0});
  }
  levels_[level].bits[server / kWordBits] |= Bit(server);
  ++levels_[level].members;
  lowest_ = std::min(lowest_, level);
}

void Balancer::Leave(std::size_t server) {
  Level& level = levels_[LevelOf(server)];
  level.bits[server / kWordBits] &= ~Bit(server);
  --level.members;
}

void Balancer::Move(std::size_t server, std::uint32_t outstanding) {
  const bool in_level = up_[server] && policy_ == client::BalancePolicy::kLeastOutstanding;
  if (in_level) Leave(server);
  outstanding_[server] = outstanding;
  if (in_level) Enter(server);
}

void Balancer::SetUp(std::size_t server, bool up) {
  if (up == up_[server]) return;
  if (!up) Leave(server);
  up_[server] = up;
  if (up) Enter(server);
}

std::optional<std::size_t> Balancer::Next(const Level& level,
                                          std::optional<std::size_t> avoid) const {
  auto found = FirstIn(level.bits, turn_, servers_);
  if (found && found == avoid) found = FirstIn(level.bits, *found + 1, servers_);
  if (found) return found;
  found = FirstIn(level.bits, 0, turn_);
  if (found && found == avoid) found = FirstIn(level.bits, *found + 1, turn_);
  return found;
}

std::optional<std::size_t> Balancer::Pick(std::optional<std::size_t> avoid) {
  while (lowest_ < levels_.size() && levels_[lowest_].members == 0) ++lowest_;
  std::optional<std::size_t> picked;
  for (std::size_t i = lowest_; i < levels_.size() && !picked; ++i) {
    if (levels_[i].members > 0) picked = Next(levels_[i], avoid);
  }
  if (!picked && avoid && up_[*avoid]) picked = avoid;
  if (picked) turn_ = (*picked + 1) % servers_;
  return picked;
}

}  // namespace normd::capacity
