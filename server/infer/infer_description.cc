#include "server/infer/infer_description.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "wire/data_type.h"

namespace normd {
namespace {

constexpr std::size_t kMaxShown = 32;  // Bytes of a text that an error repeats.

absl::Status ParameterError(absl::string_view key, absl::string_view got,
                            absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("parameters[\"", key, "\"]: ", got, ", wanted ", wanted));
}

absl::StatusOr<std::int64_t> NumberOf(absl::string_view key, const ReceivedParameter& parameter,
                                      absl::string_view wanted) {
  if (parameter.kind == ReceivedParameter::Kind::kNone) return 0;
  if (parameter.IsHuge()) return ParameterError(key, parameter.Digits(), wanted);
  if (parameter.IsNumber()) return parameter.number;
  return ParameterError(key, "not an integer", wanted);
}

absl::StatusOr<Priority> PriorityOf(const ReceivedParameter& parameter) {
  constexpr absl::string_view kWanted = "from 0 to 3";
  const absl::StatusOr<std::int64_t> number = NumberOf("priority", parameter, kWanted);
  if (!number.ok()) return number.status();
  switch (*number) {
    case 0:
    case 2: return Priority::kNormal;
    case 1: return Priority::kHigh;
    case 3: return Priority::kLow;
    default: return ParameterError("priority", absl::StrCat(*number), kWanted);
  }
}

absl::StatusOr<std::int64_t> TimeoutOf(const ReceivedParameter& parameter) {
  constexpr std::int64_t kMostMicros = 9'223'372'036'854'775;
  static_assert(kMostMicros == std::numeric_limits<std::int64_t>::max() / 1000);
  constexpr absl::string_view kWanted = "from 0 to 9223372036854775 microseconds";
  const absl::StatusOr<std::int64_t> micros = NumberOf("timeout", parameter, kWanted);
  if (!micros.ok()) return micros.status();
  if (*micros < 0 || *micros > kMostMicros) {
    return ParameterError("timeout", absl::StrCat(*micros), kWanted);
  }
  return *micros * 1000;
}

// The field of contents for elements of the type, if there is one.
InferContents ContentsFor(norm::DType dtype) {
  switch (dtype) {
    case norm::DType::kFloat32: return InferContents::kFp32;
    case norm::DType::kFloat64: return InferContents::kFp64;
    case norm::DType::kInt64: return InferContents::kInt64;
    default: return InferContents::kNone;
  }
}

absl::StatusOr<norm::DType> TypeOf(const ReceivedInferTensor& tensor, InputDescription& input) {
  const DataTypeNames* type = FindDataType(&DataTypeNames::inference, tensor.datatype);
  if (type == nullptr) {
    input.name_of = [](norm::DType dtype) { return std::string(NamesOf(dtype).inference); };
    const std::string got = tensor.datatype.empty()
                                ? "missing"
                                : absl::StrCat("\"", Printable(tensor.datatype, kMaxShown), "\"");
    return absl::InvalidArgumentError(absl::StrCat("datatype: ", got));
  }
  const InferContents contents = ContentsFor(type->dtype);
  if (tensor.contents == InferContents::kNone || tensor.contents == contents) return type->dtype;
  return absl::InvalidArgumentError(
      absl::StrCat("contents: ", Name(tensor.contents), " for ", type->inference, ", wanted ",
                   contents == InferContents::kNone ? "" : absl::StrCat(Name(contents), " or "),
                   "raw_input_contents"));
}

// 0 for a missing number, if that is allowed.
absl::StatusOr<std::int64_t> SizeOf(absl::string_view key, const ReceivedParameter& parameter,
                                    bool may_be_missing) {
  using Kind = ReceivedParameter::Kind;
  if (parameter.kind == Kind::kNone && may_be_missing) return 0;
  if (parameter.IsNumber() && !parameter.IsHuge()) return parameter.number;
  const std::string got = parameter.IsHuge()              ? parameter.Digits()
                          : parameter.kind == Kind::kNone ? "missing"
                                                          : "not an integer";
  return absl::InvalidArgumentError(absl::StrCat("[\"", key, "\"]: ", got,
                                                 ", wanted a number of bytes from 0 to ",
                                                 std::numeric_limits<std::int64_t>::max()));
}

absl::StatusOr<RegionReference> ReferenceOf(const ReceivedSharedMemory& shared) {
  if (!shared.unknown.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("[\"", Printable(shared.unknown, kMaxShown),
                     "\"]: unknown, wanted "
                     "shared_memory_region, shared_memory_offset or shared_memory_byte_size"));
  }
  if (shared.region.kind != ReceivedParameter::Kind::kText) {
    return absl::InvalidArgumentError(
        "[\"shared_memory_region\"]: no text, wanted a region's name");
  }
  const auto bytes = SizeOf("shared_memory_byte_size", shared.byte_size, false);
  if (!bytes.ok()) return bytes.status();
  const auto offset = SizeOf("shared_memory_offset", shared.offset, true);
  if (!offset.ok()) return offset.status();
  return RegionReference{shared.region.text, *offset, *bytes};
}

absl::Status TakeReference(absl::string_view list, std::size_t i,
                           const std::unique_ptr<ReceivedSharedMemory>& shared,
                           std::optional<RegionReference>& reference) {
  if (shared == nullptr) return absl::OkStatus();
  absl::StatusOr<RegionReference> taken = ReferenceOf(*shared);
  if (!taken.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(list, "[", i, "].parameters", taken.status().message()));
  }
  reference = *std::move(taken);
  return absl::OkStatus();
}

absl::Status CheckNoClasses(std::size_t i, const ReceivedParameter& classification) {
  if (classification.kind == ReceivedParameter::Kind::kNone) return absl::OkStatus();
  if (classification.IsNumber() && classification.number == 0) return absl::OkStatus();
  const std::string got = classification.IsNumber() ? classification.Digits() : "not an integer";
  return absl::InvalidArgumentError(
      absl::StrCat("outputs[", i, "].parameters[\"classification\"]: ", got,
                   ", wanted none: outputs here are tensors, not classes"));
}

absl::Status TakeInputs(InferRequestView& view, RequestDescription& request) {
  // Few clients send elements that are not packed.
  std::unique_ptr<std::vector<std::shared_ptr<std::string>>> owned;
  for (std::size_t i = 0; i < view.inputs.size(); ++i) {
    ReceivedInferTensor& tensor = view.inputs[i];
    InputDescription& input = request.inputs.emplace_back();
    absl::Status status = TakeReference("inputs", i, tensor.shared_memory, input.region);
    if (!status.ok()) return status;
    input.dtype = TypeOf(tensor, input);
    input.name = std::move(tensor.name);
    input.shape = std::move(tensor.shape);
    input.data.views = std::move(tensor.data);
    input.data_bytes = tensor.data_bytes;
    if (tensor.contents != InferContents::kNone) input.data_field = "contents";
    if (tensor.owned == nullptr) continue;
    if (owned == nullptr) owned = std::make_unique<std::vector<std::shared_ptr<std::string>>>();
    owned->push_back(std::move(tensor.owned));
  }
  request.owner = std::move(owned);
  return absl::OkStatus();
}

absl::Status TakeOutputs(InferRequestView& view, RequestDescription& request) {
  request.only_named_outputs = true;
  for (std::size_t i = 0; i < view.outputs.size(); ++i) {
    ReceivedInferOutput& output = view.outputs[i];
    if (absl::Status status = CheckNoClasses(i, output.classification); !status.ok()) return status;
    WantedOutput& wanted = request.outputs.emplace_back();
    wanted.name = std::move(output.name);
    absl::Status status = TakeReference("outputs", i, output.shared_memory, wanted.region);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::int64_t> VersionOf(absl::string_view field, absl::string_view text) {
  if (text.empty()) return 0;
  std::int64_t version = 0;
  const bool digits =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (digits && absl::SimpleAtoi(text, &version) && version > 0) return version;
  return absl::InvalidArgumentError(absl::StrCat(field, ": \"", Printable(text, kMaxShown),
                                                 "\", wanted a number from 1, a version_alias of "
                                                 "the model's config, or nothing"));
}

absl::StatusOr<std::int64_t> FindVersion(const ModelRegistry& registry, absl::string_view model,
                                         absl::string_view field, absl::string_view text) {
  if (!IsVersionAlias(text)) return VersionOf(field, text);
  const absl::StatusOr<std::int64_t> named = registry.VersionOfAlias(model, text);
  return absl::IsInvalidArgument(named.status()) ? VersionOf(field, text) : named;
}

absl::StatusOr<RequestDescription> DescribeInferRequest(InferRequestView&& view) {
  RequestDescription request;
  request.id = std::move(view.id);
  if (IsVersionAlias(view.version)) {
    request.version_alias = std::move(view.version);
  } else {
    const absl::StatusOr<std::int64_t> version = VersionOf("model_version", view.version);
    if (!version.ok()) return version.status();
    request.version = *version;
  }
  request.model = std::move(view.model);
  request.priority = PriorityOf(view.priority);
  const absl::StatusOr<std::int64_t> timeout_ns = TimeoutOf(view.timeout);
  if (!timeout_ns.ok()) return timeout_ns.status();
  request.queue_timeout_ns = *timeout_ns;
  request.timeout_field = TimeoutField::kTimeout;
  if (absl::Status status = TakeInputs(view, request); !status.ok()) return status;
  if (absl::Status status = TakeOutputs(view, request); !status.ok()) return status;
  return request;
}

}  // namespace normd
