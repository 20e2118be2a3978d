#include "server/rpc/piece_line.h"

#include <algorithm>
#include <utility>

#include "absl/numeric/int128.h"

namespace normd {
namespace {

// The most in one response message: within the default limits of gRPC's clients, and still in a
// cache.
constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;

// The inputs' share of the piece's sent bytes.
std::int64_t AnsweredBytes(const PieceLine::Piece& piece) {
  const std::int64_t bytes = piece.output->bytes();
  if (piece.sent_bytes == bytes) return piece.geometry.InputBytes();
  // In 128 bits: a piece may be as large as a window, 2^40 bytes.
  return static_cast<std::int64_t>(absl::uint128(piece.sent_bytes) * piece.geometry.InputBytes() /
                                   bytes);
}

}  // namespace

void PieceLine::Add(std::unique_ptr<Request> request) {
  Piece& piece = pieces_.emplace_back();
  piece.id = request->id;
  piece.geometry = request->geometry;
  piece.request = std::move(request);
}

std::unique_ptr<Request> PieceLine::Push() {
  if (pushed_ == pieces_.size()) return nullptr;
  ++computing_;
  return std::move(pieces_[pushed_++].request);
}

absl::Status PieceLine::SetResult(std::uint64_t number, Completion& completion,
                                  const PlacedOutputs& wanted) {
  Piece& piece = pieces_[number - first()];
  absl::StatusOr<PieceOutput> output =
      PieceOutput::Create(piece.geometry, std::move(completion.outputs), wanted);
  if (!output.ok()) return output.status();
  piece.output = *std::move(output);
  piece.batch_id = completion.batch.id;
  for (std::size_t i = 0; i < kStageCount; ++i) {
    totals_.stages[static_cast<Stage>(i)] += completion.stages[static_cast<Stage>(i)];
  }
  batch_ = std::move(completion.batch);
  return absl::OkStatus();
}

PieceLine::Chunk PieceLine::TakeChunk() {
  Piece& piece = pieces_.front();
  const std::int64_t left = piece.output->bytes() - piece.sent_bytes;
  const std::int64_t size = std::min(left, kChunkBytes);
  const std::int64_t answered = AnsweredBytes(piece);
  Chunk chunk{piece.output->Next(size), 0};
  piece.sent_bytes += size;
  totals_.bytes += size;
  chunk.answered_bytes = AnsweredBytes(piece) - answered;
  if (size < left) return chunk;
  if (std::exchange(last_batch_, piece.batch_id) != piece.batch_id) ++totals_.batches;
  pieces_.pop_front();
  ++totals_.pieces;
  --pushed_;
  return chunk;
}

void PieceLine::Abandon(std::deque<Piece>& pieces) {
  pushed_ = 0;
  pieces_.swap(pieces);
}

}  // namespace normd
