#include "tests/server/rpc/script_models.h"

#include <grpc/grpc.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "spdlog/spdlog.h"

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
  const absl::string_view weight =
      R"({"linear.weight":{"dtype":"F32","shape":[20,12],"data_offsets":[0,960]}})";
  std::ofstream(absl::StrCat(root_, "/fused/1/params.safetensors"), std::ios::binary)
      << static_cast<char>(weight.size()) << std::string(7, '\0') << weight
      << std::string(960, '\0');
  return root_;
}

}  // namespace normd::testing
