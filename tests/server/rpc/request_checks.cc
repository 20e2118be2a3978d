#include "tests/server/rpc/request_checks.h"

#include <algorithm>
#include <cstdint>

#include "server/rpc/infer_messages.h"
#include "server/rpc/norm_messages.h"
#include "tests/fuzz/expect.h"
#include "tests/server/rpc/script_models.h"

namespace normd::testing {

CutMessage::CutMessage(absl::string_view message, std::size_t step) {
  for (std::size_t at = 0; at < message.size(); at += step) {
    const absl::string_view part = message.substr(at, step);
    auto& memory = memory_.emplace_back(std::make_unique<char[]>(part.size()));
    std::copy(part.begin(), part.end(), memory.get());
    views_.emplace_back(reinterpret_cast<const std::byte*>(memory.get()), part.size());
  }
}

const MessageCodec& CodecOf(FuzzedProtocol protocol) {
  static const NormalizeCodec normalize;
  static const InferCodec infer(InferMessageKind::kResponse);
  static const InferCodec stream_infer(InferMessageKind::kStreamResponse);
  switch (protocol) {
    case FuzzedProtocol::kNormalize: return normalize;
    case FuzzedProtocol::kInfer: return infer;
    case FuzzedProtocol::kStreamInfer: break;
  }
  return stream_infer;
}

void CheckAccepted(const AcceptedRequest& accepted, const RequestDescription& description) {
  const Geometry& geometry = accepted.geometry();
  Expect(accepted.inputs.places.size() == geometry.inputs.size(), "an input each");
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < geometry.inputs.size(); ++i) {
    const InputDescription& input = description.inputs.at(accepted.inputs.places[i]);
    std::int64_t held = 0;
    for (const ConstBytes view : input.data.views) held += static_cast<std::int64_t>(view.size());
    Expect(held == geometry.inputs[i].bytes, "the bytes that the shape asks for");
    bytes += held;
  }
  Expect(bytes <= ScriptModels::kMaxRequestBytes, "no more than the limit");
  Expect(accepted.queue_timeout > Duration(0), "a time-out is none or positive");
}

}  // namespace normd::testing
