#include "server/rpc/stream_input.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/accept/inputs.h"
#include "server/rpc/norm_messages.h"
#include "wire/normalize_request.h"

namespace normd {
namespace {

// A header is a name, a few numbers and a shape.
constexpr std::int64_t kMaxHeaderBytes = 4096;

}  // namespace

absl::StatusOr<RequestDescription> ReadStreamHeader(const StreamPartView& part) {
  if (part.kind != StreamPartView::Kind::kHeader) {
    return absl::InvalidArgumentError("part: wanted the header in the first message");
  }
  if (part.size > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("header: ", part.size, " bytes, wanted at most ", kMaxHeaderBytes));
  }
  absl::StatusOr<NormalizeRequestView> view = DecodeNormalizeRequest(part.bytes);
  if (!view.ok()) return view.status();
  RequestDescription request = Describe(*std::move(view));
  request.in_chunks = true;
  return request;
}

StreamInput::StreamInput(const Model& model, const AcceptedRequest& accepted)
    : model_(&model),
      accepted_(&accepted),
      pieces_(accepted.stream->pieces, accepted.stream->limits.min_kept_bytes) {}

absl::Status StreamInput::CheckChunk(const StreamPartView& part) const {
  if (part.kind != StreamPartView::Kind::kChunk) {
    return absl::InvalidArgumentError("part: wanted a chunk after the header");
  }
  const std::int64_t most = accepted_->stream->limits.max_chunk_bytes();
  if (part.size > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk: ", part.size, " bytes, wanted at most ", most));
  }
  const std::int64_t end = received_bytes() + part.size;
  if (end > WantedBytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", end, " bytes or more, wanted ", accepted_->inputs.WantedData()));
  }
  return absl::OkStatus();
}

absl::Status StreamInput::Take(const StreamPartView& part, absl::Span<const grpc::Slice> slices,
                               std::vector<ReceivedPiece>& out) {
  if (absl::Status status = CheckChunk(part); !status.ok()) return status;
  std::size_t message_bytes = 0;
  for (const grpc::Slice& received : slices) message_bytes += received.size();
  const bool worth_keeping = 2 * static_cast<std::size_t>(part.size) >= message_bytes;
  std::size_t checked = out.size();
  auto slice = slices.begin();
  for (const ConstBytes view : part.bytes) {
    // Views come in the order of the slices, each within one of them.
    const auto* data = reinterpret_cast<const std::uint8_t*>(view.data());
    while (data < slice->begin() || data >= slice->end()) ++slice;
    pieces_.Add(*slice, view, out, worth_keeping);
  }
  for (; checked < out.size(); ++checked) {
    absl::Status status = CheckIndexesOf(out[checked]);
    if (status.ok()) continue;
    out.resize(checked);
    return status;
  }
  return absl::OkStatus();
}

// For a piece of whole samples.
absl::Status StreamInput::CheckIndexesOf(const ReceivedPiece& piece) {
  const absl::Span<const TensorSignature> inputs = model_->inputs();
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (inputs[k].values == 0) continue;
    absl::Status status = CheckIndexes(inputs[k], piece.inputs[k], checked_samples_);
    if (!status.ok()) return status;
  }
  checked_samples_ += piece.geometry.samples;
  return absl::OkStatus();
}

absl::Status StreamInput::TakeEnd() const {
  if (received_bytes() == WantedBytes()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data: ", received_bytes(), " bytes, wanted ", accepted_->inputs.WantedData()));
}

}  // namespace normd
