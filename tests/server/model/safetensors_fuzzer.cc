// Files of parameters, held against a second reading of their header as a tree, and against the
// configs that would use them. The first byte of the input says which config; the rest is the file,
// or, with an even one, its header and its data as TEXT\0DATA, to which the length is added.

#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "operations/parameters.h"
#include "operations/safetensors.h"
#include "server/model/config.h"
#include "tests/fuzz/expect.h"

namespace normd::testing {
namespace {

using nlohmann::json;

// The longest message is that of MatchParameters, which lists what the file has.
constexpr std::size_t kMaxMessageBytes = 2000;

const std::vector<v1::ModelConfig>& Configs() {
  static const auto* const configs = [] {
    auto* parsed = new std::vector<v1::ModelConfig>;
    for (const char* text :
         {"layer_norm { normalized_shape: 2 }", "rms_norm { normalized_shape: 1 }",
          "batch_norm { channels: 1 }", "instance_norm { channels: 2 affine: false }",
          "group_norm { channels: 2 groups: 1 } parameter_prefix: \"a.\"",
          "linear_norm { in_features: 2 out_features: 1 }"}) {
      const absl::StatusOr<v1::ModelConfig> config = ParseModelConfig(text);
      Expect(config.ok() && CheckModelConfig(*config).ok(), "the configs are right", text);
      parsed->push_back(*config);
    }
    return parsed;
  }();
  return *configs;
}

// The header read by a tree, without its own order: the tensors by name. Nothing where it is not
// what the format says; the parser's tree has the last of two equal names, so those are counted.
struct Entry {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

std::uint64_t BitsOf(const std::string& dtype) {
  static const std::map<std::string, std::uint64_t> bits = {
      {"F64", 64},    {"F32", 32},    {"F16", 16},        {"BF16", 16},       {"I64", 64},
      {"I32", 32},    {"I16", 16},    {"I8", 8},          {"U64", 64},        {"U32", 32},
      {"U16", 16},    {"U8", 8},      {"BOOL", 8},        {"C64", 64},        {"F8_E5M2", 8},
      {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6},
      {"F6_E3M2", 6}, {"F4", 4}};
  const auto found = bits.find(dtype);
  return found == bits.end() ? 0 : found->second;
}

// Whether `entry` needs the bytes that it has. Sizes here are far below 2^64.
bool IsRightSize(const Entry& entry) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  std::uint64_t elements = 1;
  if (std::count(entry.shape.begin(), entry.shape.end(), 0U) > 0) elements = 0;
  for (const std::uint64_t dim : entry.shape) {
    if (elements == 0) break;
    if (dim > kMost / elements) return false;
    elements *= dim;
  }
  return elements * BitsOf(entry.dtype) == (entry.end - entry.begin) * 8;
}

using Entries = std::map<std::string, Entry>;

bool ReadEntry(const json& tree, Entry& entry) {
  if (!tree.is_object() || tree.size() != 3 || !tree.contains("dtype") || !tree.contains("shape") ||
      !tree.contains("data_offsets")) {
    return false;
  }
  const json& shape = tree["shape"];
  const json& offsets = tree["data_offsets"];
  const auto is_count = [](const json& value) {
    return value.is_number_unsigned() && value.get<std::uint64_t>() >> 63 == 0;
  };
  if (!tree["dtype"].is_string() || BitsOf(tree["dtype"].get<std::string>()) == 0) return false;
  if (!shape.is_array() || shape.size() > kMaxRank || !offsets.is_array() || offsets.size() != 2) {
    return false;
  }
  if (!std::all_of(shape.begin(), shape.end(), is_count) ||
      !std::all_of(offsets.begin(), offsets.end(), is_count)) {
    return false;
  }
  entry = {tree["dtype"].get<std::string>(), shape.get<std::vector<std::uint64_t>>(),
           offsets[0].get<std::uint64_t>(), offsets[1].get<std::uint64_t>()};
  return entry.begin <= entry.end && IsRightSize(entry);
}

// True: `entries` are what a right header says.
bool ReadTree(absl::string_view header, std::uint64_t data_bytes, Entries& entries) {
  if (header.empty() || header.front() != '{' || header.find('\0') != absl::string_view::npos) {
    return false;
  }
  // Names that an object has twice. Those of metadata may be.
  std::vector<std::set<std::string>> keys;
  bool twice = false;
  const auto count_keys = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key &&
        !keys.back().insert(parsed.get<std::string>()).second) {
      twice |= depth == 1 || keys.size() == 2;
    }
    return true;
  };
  const json tree = json::parse(header.begin(), header.end(), count_keys, false);
  if (!tree.is_object()) return false;
  for (const auto& [name, value] : tree.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return false;
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) return false;
      }
    } else if (!ReadEntry(value, entries[name])) {
      return false;
    }
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;
  for (const auto& [name, entry] : entries) extents.emplace_back(entry.begin, entry.end);
  std::sort(extents.begin(), extents.end());
  std::uint64_t covered = 0;
  for (const auto& [begin, end] : extents) {
    if (begin != covered) return false;
    covered = end;
  }
  return covered == data_bytes && !twice;
}

// Compares two readings of one header.
void CheckAgreement(const std::vector<TensorEntry>& tensors, const Entries& entries) {
  Expect(tensors.size() == entries.size(), "both find the same tensors");
  for (const TensorEntry& tensor : tensors) {
    const auto found = entries.find(tensor.name);
    Expect(found != entries.end(), "both find this tensor", tensor.name);
    const Entry& entry = found->second;
    Expect(tensor.dtype == entry.dtype && tensor.begin == static_cast<std::int64_t>(entry.begin) &&
               tensor.end == static_cast<std::int64_t>(entry.end) &&
               std::equal(entry.shape.begin(), entry.shape.end(), tensor.shape.dims().begin(),
                          tensor.shape.dims().end(),
                          [](std::uint64_t a, std::int64_t b) {
                            return a == static_cast<std::uint64_t>(b);
                          }),
           "both find the same of this tensor", tensor.name);
  }
}

std::uint64_t LengthOf(absl::string_view content) {
  std::uint64_t length = 0;
  std::memcpy(&length, content.data(), sizeof(length));
  return length;
}

void TryFile(const v1::ModelConfig& config, absl::string_view content) {
  static const MemoryFile memory;
  memory.Write(content);
  absl::StatusOr<InputFile> file =
      InputFile::Adopt("f", Descriptor(fcntl(memory.descriptor(), F_DUPFD_CLOEXEC, 0)), 1 << 20);
  Expect(file.ok(), "a file is a file", file.status().message());
  absl::StatusOr<SafetensorsFile> tensors = SafetensorsFile::Open(*file);

  Entries entries;
  absl::string_view data;
  bool right = content.size() >= sizeof(std::uint64_t) &&
               LengthOf(content) <= content.size() - sizeof(std::uint64_t);
  if (right) {
    data = content.substr(sizeof(std::uint64_t) + LengthOf(content));
    right =
        ReadTree(content.substr(sizeof(std::uint64_t), LengthOf(content)), data.size(), entries);
  }
  Expect(tensors.ok() == right, "both take the same files", tensors.status().message());
  // It may name a tensor and a field, 64 and 32 bytes of which each may take four characters.
  if (!right) return ExpectMessage(tensors.status().message(), 512);

  CheckAgreement(tensors->tensors(), entries);
  for (const TensorEntry& tensor : tensors->tensors()) {
    if (!ParameterDType(tensor.dtype)) continue;
    const absl::StatusOr<Parameter> parameter = tensors->Read(tensor);
    Expect(parameter.ok(), "a parameter is read", parameter.status().message());
    const auto size = static_cast<std::size_t>(tensor.end - tensor.begin);
    Expect(data.substr(static_cast<std::size_t>(tensor.begin), size) ==
               absl::string_view(reinterpret_cast<const char*>(parameter->data.get()), size),
           "a parameter has its bytes", tensor.name);
  }
  const auto matched = MatchParameters(config, tensors->tensors());
  if (!matched.ok()) return ExpectMessage(matched.status().message(), kMaxMessageBytes);
  for (const MatchedParameter& match : *matched) {
    Expect(ParameterDType(tensors->tensors().at(match.tensor).dtype).has_value(),
           "what is used is a parameter");
  }
}

}  // namespace
}  // namespace normd::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  normd::testing::Script script(data, size);
  const std::uint8_t first = script.Byte();
  const normd::v1::ModelConfig& config =
      normd::testing::Configs()[first / 2 % normd::testing::Configs().size()];
  if (first % 2 == 1) {
    normd::testing::TryFile(config, script.Rest());
    return 0;
  }
  const absl::string_view header = script.Until('\0');
  const std::uint64_t length = header.size();
  std::string content(reinterpret_cast<const char*>(&length), sizeof(length));
  content.append(header.data(), header.size());
  content.append(script.Rest().data(), script.Rest().size());
  normd::testing::TryFile(config, content);
  return 0;
}
