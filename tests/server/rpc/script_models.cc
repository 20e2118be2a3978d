#include "tests/server/rpc/script_models.h"

#include <grpc/grpc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/rpc/infer_messages.h"
#include "server/rpc/norm_messages.h"
#include "spdlog/spdlog.h"
#include "tests/fuzz/expect.h"

namespace normd::testing {

ScriptModels& ScriptModels::Get() {
  static ScriptModels* const models = new ScriptModels;  // For as long as gRPC's threads live.
  return *models;
}

ScriptModels::ScriptModels()
    : registry_({.roots = {MakeRepository()}, .on_change = {}}, backend_, metrics_, clock_) {
  grpc_init();
  spdlog::set_level(spdlog::level::warn);
  if (!registry_.LoadAll().ok()) std::abort();
  std::filesystem::remove_all(root_);
}

std::string ScriptModels::MakeRepository() {
  root_ = (std::filesystem::temp_directory_path() / "normd_script_XXXXXX").string();
  if (mkdtemp(root_.data()) == nullptr) std::abort();
  const auto add = [&](const char* name, const char* config) {
    std::filesystem::create_directories(absl::StrCat(root_, "/", name, "/1"));
    std::ofstream(absl::StrCat(root_, "/", name, "/config.textproto")) << config;
  };
  add("first", "group_norm { channels: 6 groups: 3 affine: false }");
  add("last", "group_norm { channels: 6 groups: 3 affine: false } layout: CHANNELS_LAST");
  add("rows", "layer_norm { normalized_shape: 8 affine: false }");
  add("residual", "add_rms_norm { normalized_shape: 8 affine: false }");
  add("fused",
      "linear_norm { in_features: 12 out_features: 20 bias: false epilogue { add: true } }");
  add("styled", "conditional_instance_norm { channels: 2 styles: 3 by_index: true }");
  const auto add_zeros = [&](const char* name, absl::string_view header, std::size_t bytes) {
    std::ofstream(absl::StrCat(root_, "/", name, "/1/params.safetensors"), std::ios::binary)
        << static_cast<char>(header.size()) << std::string(7, '\0') << header
        << std::string(bytes, '\0');
  };
  add_zeros("fused", R"({"linear.weight":{"dtype":"F32","shape":[20,12],"data_offsets":[0,960]}})",
            960);
  add_zeros("styled", R"({"weight":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]}})", 24);
  return root_;
}

CutMessage::CutMessage(absl::string_view message, std::size_t step) {
  for (std::size_t at = 0; at < message.size(); at += step) {
    const absl::string_view part = message.substr(at, step);
    auto& memory = memory_.emplace_back(std::make_unique<char[]>(part.size()));
    std::copy(part.begin(), part.end(), memory.get());
    views_.emplace_back(reinterpret_cast<const std::byte*>(memory.get()), part.size());
  }
}

grpc::Slice CountedSlice(absl::string_view bytes, std::int64_t& held) {
  struct Owned {
    std::unique_ptr<char[]> memory;
    std::int64_t& held;
  };
  auto* const owned = new Owned{std::make_unique<char[]>(bytes.size()), held};
  std::copy(bytes.begin(), bytes.end(), owned->memory.get());
  ++held;
  return grpc::Slice(
      owned->memory.get(), bytes.size(),
      [](void* data) {
        const std::unique_ptr<Owned> gone(static_cast<Owned*>(data));
        --gone->held;
      },
      owned);
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
