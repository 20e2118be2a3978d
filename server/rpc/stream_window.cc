#include "server/rpc/stream_window.h"

namespace normd {

std::optional<std::int64_t> StreamWindow::Settle() {
  const std::int64_t held = geometry_ == nullptr ? 0 : HeldBytes(*geometry_, inside_bytes_);
  if (held == leased_bytes_ && !unsettled_) return std::nullopt;
  unsettled_ = false;
  return held - std::exchange(leased_bytes_, held);
}

std::int64_t StreamWindow::AwaitRoom() {
  awaits_room_ = true;
  return HeldBytes(*geometry_, last_chunk_bytes_);
}

void StreamWindow::OnRoom(bool overdraft, std::uint64_t next_piece) {
  awaits_room_ = false;
  has_room_ = true;
  if (overdraft) overdrawn_piece_ = next_piece;
}

bool StreamWindow::EndOverdraft() {
  if (!overdrawn_piece_.has_value() || answered_pieces_ <= *overdrawn_piece_) return false;
  overdrawn_piece_.reset();
  return true;
}

}  // namespace normd
