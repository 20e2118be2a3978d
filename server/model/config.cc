#include "server/model/config.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/printable.h"
#include "operations/field_checks.h"
#include "operations/operations.h"
#include "server/model/version_plan.h"
#include "server/text_format/parse_text.h"
#include "wire/tensor_message.h"

namespace normd {
namespace {

constexpr std::int64_t kMaxQueueDelayUs = 60'000'000;
constexpr std::size_t kMaxParameterNameBytes = 512;
constexpr char kNameWish[] = "1 to 512 bytes of valid UTF-8";

// Keeps strings out of responses that a client could then not parse.
bool IsUtf8(absl::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const unsigned lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80       ? 1
                               : lead >> 5 == 6  ? 2
                               : lead >> 4 == 14 ? 3
                               : lead >> 3 == 30 ? 4
                                                 : 0;
    if (length == 0 || text.size() - i < length) return false;
    unsigned code = length == 1 ? lead : lead & (0x7fu >> length);
    for (std::size_t k = 1; k < length; ++k) {
      const unsigned next = static_cast<unsigned char>(text[i + k]);
      if (next >> 6 != 2) return false;
      code = code << 6 | (next & 0x3f);
    }
    constexpr unsigned kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool surrogate = code >= 0xd800 && code <= 0xdfff;
    if (code < kSmallest[length] || code > 0x10ffff || surrogate) return false;
    i += length;
  }
  return true;
}

absl::Status CheckDtypes(const v1::ModelConfig& config, const Operation& operation) {
  unsigned seen = 0;
  for (int i = 0; i < config.dtypes_size(); ++i) {
    const v1::DataType dtype = config.dtypes(i);
    const std::string field = absl::StrCat("dtypes[", i, "]");
    if (const auto kernel = FromProtocol(dtype); !kernel.ok() || !operation.TakesDType(*kernel)) {
      return InvalidField(field,
                          v1::DataType_IsValid(dtype) ? v1::DataType_Name(dtype)
                                                      : absl::StrCat(static_cast<int>(dtype)),
                          operation.DTypesText());
    }
    if ((seen >> dtype & 1) != 0)
      return InvalidField(field, v1::DataType_Name(dtype), "each type once");
    seen |= 1u << dtype;
  }
  return absl::OkStatus();
}

absl::Status CheckLayoutAndActivation(const v1::ModelConfig& config, const Operation& operation) {
  if (!v1::Layout_IsValid(config.layout())) {
    return InvalidField("layout", absl::StrCat(static_cast<int>(config.layout())),
                        "CHANNELS_FIRST or CHANNELS_LAST");
  }
  if (config.layout() != v1::CHANNELS_FIRST && !operation.has_channels()) {
    return InvalidField("layout", v1::Layout_Name(config.layout()),
                        "none for an operation without channels");
  }
  if (!v1::Activation_IsValid(config.activation())) {
    return InvalidField("activation", absl::StrCat(static_cast<int>(config.activation())),
                        "NONE, RELU, LEAKY_RELU, SILU, GELU_ERF or GELU_TANH");
  }
  if (config.has_leaky_slope()) {
    if (config.activation() != v1::LEAKY_RELU) {
      return InvalidField(
          "leaky_slope", absl::StrCat(config.leaky_slope()),
          absl::StrCat("none for activation ", v1::Activation_Name(config.activation())));
    }
    return CheckFinite("leaky_slope", config.leaky_slope());
  }
  return absl::OkStatus();
}

absl::Status CheckQuantizationScale(const v1::Quantization& quantization) {
  constexpr absl::string_view kField = "quantization.scale";
  constexpr absl::string_view kWanted = "a normal float32 value above 0";
  const absl::string_view scales = v1::QuantizationScales_Name(quantization.scales());
  if (quantization.scales() != v1::PER_TENSOR) {
    if (!quantization.has_scale()) return absl::OkStatus();
    return InvalidField(kField, absl::StrCat(quantization.scale()),
                        absl::StrCat("none: scales ", scales, " are computed"));
  }
  if (!quantization.has_scale()) {
    return InvalidField(kField, "missing",
                        absl::StrCat(kWanted, ", or scales: PER_ROW or PER_BLOCK"));
  }
  if (quantization.scale() >= static_cast<double>(std::numeric_limits<float>::min()) &&
      quantization.scale() <= static_cast<double>(std::numeric_limits<float>::max())) {
    return absl::OkStatus();
  }
  return InvalidField(kField, absl::StrCat(quantization.scale()), kWanted);
}

absl::Status CheckQuantization(const v1::ModelConfig& config, const Operation& operation) {
  if (!config.has_quantization()) return absl::OkStatus();
  const v1::Quantization& quantization = config.quantization();
  if (!operation.Quantizes(v1::PER_TENSOR)) {
    return InvalidField("quantization", "present", "none: the operation's output has x's type");
  }
  if (quantization.dtype() != v1::INT8 && quantization.dtype() != v1::FLOAT8_E4M3) {
    const std::string got = quantization.dtype() == v1::DATA_TYPE_UNSPECIFIED ? "missing"
                            : v1::DataType_IsValid(quantization.dtype())
                                ? v1::DataType_Name(quantization.dtype())
                                : absl::StrCat(static_cast<int>(quantization.dtype()));
    return InvalidField("quantization.dtype", got, "INT8 or FLOAT8_E4M3");
  }
  const absl::string_view taken =
      !operation.Quantizes(v1::PER_ROW) ? "PER_TENSOR: given statistics have no rows"
      : !operation.Quantizes(v1::PER_BLOCK)
          ? "PER_TENSOR or PER_ROW: blocks are for rows over the last dimensions"
          : "PER_TENSOR, PER_ROW or PER_BLOCK";
  if (!v1::QuantizationScales_IsValid(quantization.scales())) {
    return InvalidField("quantization.scales",
                        absl::StrCat(static_cast<int>(quantization.scales())), taken);
  }
  if (!operation.Quantizes(quantization.scales())) {
    return InvalidField("quantization.scales", v1::QuantizationScales_Name(quantization.scales()),
                        taken);
  }
  return CheckQuantizationScale(quantization);
}

absl::Status CheckBatching(const v1::BatchingConfig& batching) {
  const auto positive = [](absl::string_view field, bool present, std::int64_t value) {
    if (!present || value >= 1) return absl::OkStatus();
    return InvalidField(field, absl::StrCat(value), "at least 1");
  };
  for (const absl::Status& status :
       {positive("batching.max_rows", batching.has_max_rows(), batching.max_rows()),
        positive("batching.max_bytes", batching.has_max_bytes(), batching.max_bytes()),
        positive("batching.max_queue_requests", batching.has_max_queue_requests(),
                 batching.max_queue_requests())}) {
    if (!status.ok()) return status;
  }
  // 0 is a delay, and the server's default: a free lane takes what is there.
  const std::int64_t delay_us = batching.max_queue_delay_us();
  if (delay_us < 0 || delay_us > kMaxQueueDelayUs) {
    return InvalidField("batching.max_queue_delay_us", absl::StrCat(delay_us),
                        absl::StrCat("0 to ", kMaxQueueDelayUs));
  }
  return absl::OkStatus();
}

std::string NamesField(absl::string_view key) {
  return absl::StrCat("parameter_names[\"", Printable(key, kMaxQuotedBytes), "\"]");
}

absl::Status CheckParameterNames(const v1::ModelConfig& config, const Operation& operation) {
  const std::vector<ExpectedParameter>& expected = operation.parameters().expected;
  const auto known = [&expected](absl::string_view name) {
    return std::any_of(expected.begin(), expected.end(),
                       [name](const ExpectedParameter& wanted) { return name == wanted.name; });
  };
  const std::string names = absl::StrJoin(
      expected, ", ", [](std::string* out, const auto& wanted) { out->append(wanted.name); });
  const std::string wanted = expected.empty() ? "none: the operation takes no parameters" : names;
  const std::string& prefix = config.parameter_prefix();
  if (!prefix.empty() && expected.empty()) {
    return InvalidField("parameter_prefix", Printable(prefix, 64), wanted);
  }
  if (prefix.size() > kMaxParameterNameBytes || !IsUtf8(prefix)) {
    return InvalidField("parameter_prefix", Printable(prefix, 32), kNameWish);
  }
  absl::flat_hash_set<absl::string_view> taken;
  for (const ExpectedParameter& parameter : expected) {
    const auto named = config.parameter_names().find(parameter.name);
    absl::string_view name = parameter.name;
    if (named != config.parameter_names().end()) name = named->second;
    if (name.empty() || name.size() > kMaxParameterNameBytes || !IsUtf8(name)) {
      return InvalidField(NamesField(parameter.name), absl::StrCat("\"", Printable(name, 32), "\""),
                          kNameWish);
    }
    if (!taken.insert(name).second) {
      return InvalidField(NamesField(parameter.name), Printable(name, 32),
                          "a tensor of its own for each parameter");
    }
  }
  for (const auto& [name, value] : config.parameter_names()) {
    if (!known(name)) return InvalidField(NamesField(name), "unknown key", wanted);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::ModelConfig> ReadModelConfig(InputFile& file) {
  std::string text(static_cast<std::size_t>(file.size_bytes()), '\0');
  const absl::Status read =
      file.Read(0, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size()));
  if (!read.ok()) return read;
  google::protobuf::TextFormat::ParseInfoTree places;
  absl::StatusOr<v1::ModelConfig> config = ParseModelConfig(text, &places);
  std::string place;
  absl::Status status = config.status();
  if (config.ok()) {
    status = CheckModelConfig(*config);
    place = PlaceInText(*config, places, status.message());
  }
  if (status.ok()) return config;
  return absl::InvalidArgumentError(absl::StrCat(file.name(), ": ", place, status.message()));
}

absl::Status CheckModelConfig(const v1::ModelConfig& config) {
  const absl::StatusOr<std::unique_ptr<const Operation>> operation = MakeOperation(config);
  if (!operation.ok()) return operation.status();
  for (const absl::Status& status :
       {CheckDtypes(config, **operation), CheckLayoutAndActivation(config, **operation),
        CheckQuantization(config, **operation), CheckBatching(config.batching()),
        CheckVersionFields(config)}) {
    if (!status.ok()) return status;
  }
  if (absl::Status status = CheckParameterNames(config, **operation); !status.ok()) return status;
  if (!IsUtf8(config.description())) {
    return InvalidField("description", Printable(config.description(), 32), "valid UTF-8");
  }
  return absl::OkStatus();
}

}  // namespace normd
