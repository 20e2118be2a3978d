#include "server/rpc/stream_pieces.h"

#include <grpc/slice.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace normd {
namespace {

// The block size of the memory for copied bytes.
constexpr std::size_t kCopiedBlockBytes = std::size_t{64} << 10;
// A reference to fewer bytes costs more than a copy.
constexpr std::size_t kTinyBytes = 1024;

// The part that a slice shares with all others from the same allocation.
const void* AllocationOf(const grpc::Slice& slice) {
  const grpc_slice reference = slice.c_slice();
  const void* allocation = reference.refcount;
  grpc_slice_unref(reference);
  return allocation;
}

}  // namespace

struct PieceAssembler::Memory {
  std::vector<grpc::Slice> slices;
  std::vector<std::unique_ptr<std::byte[]>> copies;
};

PieceAssembler::PieceAssembler(PieceSequence pieces, std::int64_t min_kept_bytes)
    : pieces_(pieces), min_kept_bytes_(min_kept_bytes) {
  if (!pieces_.done()) Begin();
}

void PieceAssembler::Begin() {
  geometry_ = pieces_.Next();
  lacking_bytes_ = geometry_.InputBytes();
  memory_ = std::make_shared<Memory>();
  inputs_.resize(geometry_.inputs.size());
  BeginPart(0);
}

void PieceAssembler::BeginPart(std::size_t input) {
  part_input_ = input;
  part_bytes_ = geometry_.inputs[input].bytes;
  if (inputs_.size() > 1) part_bytes_ /= geometry_.samples;
}

void PieceAssembler::Add(const grpc::Slice& slice, ConstBytes bytes,
                         std::vector<ReceivedPiece>& out, bool worth_keeping) {
  received_bytes_ += static_cast<std::int64_t>(bytes.size());
  while (!bytes.empty()) {
    const ConstBytes part = bytes.subspan(0, static_cast<std::size_t>(part_bytes_));
    Append(slice, part, inputs_[part_input_], worth_keeping);
    bytes.remove_prefix(part.size());
    lacking_bytes_ -= static_cast<std::int64_t>(part.size());
    part_bytes_ -= static_cast<std::int64_t>(part.size());
    if (part_bytes_ > 0) continue;
    if (lacking_bytes_ > 0) {
      BeginPart((part_input_ + 1) % inputs_.size());
      continue;
    }
    out.push_back(Take());
    if (!pieces_.done()) Begin();
  }
}

void PieceAssembler::Append(const grpc::Slice& slice, ConstBytes bytes, Input& input,
                            bool worth_keeping) {
  if (!worth_keeping || bytes.size() < kTinyBytes) {
    EndRun(input);
    input.copied.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (input.copied.size() >= kCopiedBlockBytes) Flush(input);
    return;
  }
  const void* allocation = AllocationOf(slice);
  if (input.run != allocation) EndRun(input);
  input.run = allocation;
  input.run_bytes += static_cast<std::int64_t>(bytes.size());
  // It is not one of the tiny slices that hold their bytes inside themselves, so the view stays
  // valid when the reference moves.
  input.run_views.push_back(bytes);
  if (input.run_slices.empty() || input.run_slices.back().begin() != slice.begin()) {
    input.run_slices.push_back(slice);
  }
}

void PieceAssembler::EndRun(Input& input) {
  if (input.run_views.empty()) return;
  if (input.run_bytes >= min_kept_bytes_) {
    Flush(input);
    input.views.insert(input.views.end(), input.run_views.begin(), input.run_views.end());
    std::move(input.run_slices.begin(), input.run_slices.end(),
              std::back_inserter(memory_->slices));
  } else {
    for (const ConstBytes bytes : input.run_views) {
      input.copied.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    if (input.copied.size() >= kCopiedBlockBytes) Flush(input);
  }
  input.run = nullptr;
  input.run_bytes = 0;
  input.run_views.clear();
  input.run_slices.clear();
}

void PieceAssembler::Flush(Input& input) {
  std::string& copied = input.copied;
  if (copied.empty()) return;
  memory_->copies.push_back(std::make_unique<std::byte[]>(copied.size()));
  std::byte* copy = memory_->copies.back().get();
  std::copy_n(reinterpret_cast<const std::byte*>(copied.data()), copied.size(), copy);
  input.views.emplace_back(copy, copied.size());
  copied.clear();
}

ReceivedPiece PieceAssembler::Take() {
  ReceivedPiece piece{geometry_, {}, nullptr};
  for (Input& input : inputs_) {
    EndRun(input);
    Flush(input);
    piece.inputs.push_back(std::move(input.views));
    input.views.clear();
  }
  piece.owner = std::move(memory_);
  return piece;
}

}  // namespace normd
