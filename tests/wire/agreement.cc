#include "tests/wire/agreement.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "inference/grpc_service.pb.h"
#include "normd/v1/norm_service.pb.h"
#include "wire/infer_request.h"
#include "wire/infer_response.h"
#include "wire/normalize_request.h"
#include "wire/normalize_response.h"
#include "wire/stream_part.h"

namespace normd::testing {
namespace {

// Refusals of messages that protobuf itself would parse.
bool IsCap(const absl::Status& status) { return absl::StrContains(status.message(), ", wanted "); }

template <typename A, typename B>
void Expect(absl::string_view field, const A& got, const B& want, std::string& differences) {
  if (got != want) absl::StrAppend(&differences, field, ": got ", got, ", want ", want, "\n");
}

void Compare(const ReceivedTensor& got, const v1::Tensor& want, std::string& differences) {
  Expect("name", got.name, want.name(), differences);
  Expect("dtype", static_cast<int>(got.dtype), static_cast<int>(want.dtype()), differences);
  Expect("shape", absl::StrJoin(got.shape, ","), absl::StrJoin(want.shape(), ","), differences);
  Expect("data_bytes", got.data_bytes, static_cast<std::int64_t>(want.data().size()), differences);
  if (Join(got.data) != want.data()) absl::StrAppend(&differences, "data differs\n");
  for (const ConstBytes view : got.data) {
    if (view.empty()) absl::StrAppend(&differences, "an empty view\n");
  }
}

// `want`: a message that may have a part of shared memory.
template <typename Generated>
void ComparePart(const std::optional<ReceivedSharedPart>& got, const Generated& want,
                 std::string& differences) {
  Expect("has_shared_memory", got.has_value(), want.has_shared_memory(), differences);
  if (!got.has_value()) return;
  Expect("region", got->region, want.shared_memory().region(), differences);
  Expect("offset", got->offset, want.shared_memory().offset(), differences);
  Expect("byte_size", got->byte_size, want.shared_memory().byte_size(), differences);
}

template <typename Tensors>
void CompareAll(const ReceivedTensors& got, const Tensors& want, std::string& differences) {
  Expect("tensors", static_cast<int>(got.size()), want.size(), differences);
  for (int i = 0; i < want.size() && differences.empty(); ++i) {
    Compare(got[static_cast<std::size_t>(i)], want[i], differences);
    ComparePart(got[static_cast<std::size_t>(i)].shared_memory, want[i], differences);
  }
}

std::string Compare(const NormalizeRequestView& got, const v1::NormalizeRequest& want) {
  std::string differences;
  Expect("model", got.model, want.model(), differences);
  Expect("version", got.version, want.version(), differences);
  Expect("priority", static_cast<int>(got.priority), static_cast<int>(want.priority()),
         differences);
  Expect("precision", static_cast<int>(got.precision), static_cast<int>(want.precision()),
         differences);
  Expect("queue_timeout_ns", got.queue_timeout_ns, want.queue_timeout_ns(), differences);
  if (got.inputs.empty() || got.inputs.size() > kMaxTensors) {
    absl::StrAppend(&differences, "accepted ", got.inputs.size(), " inputs");
  }
  CompareAll(got.inputs, want.inputs(), differences);
  Expect("outputs", static_cast<int>(got.outputs.size()), want.outputs_size(), differences);
  for (int i = 0; i < want.outputs_size() && differences.empty(); ++i) {
    const ReceivedOutput& output = got.outputs[static_cast<std::size_t>(i)];
    Expect("name", output.name, want.outputs(i).name(), differences);
    ComparePart(output.shared_memory, want.outputs(i), differences);
  }
  Expect("unnamed_outputs", got.unnamed_outputs, want.unnamed_outputs(), differences);
  return differences;
}

std::string Compare(const NormalizeResponseView& got, const v1::NormalizeResponse& want) {
  std::string differences;
  Expect("model", got.model, want.model(), differences);
  Expect("version", got.version, want.version(), differences);
  Expect("stages", got.stages.SerializeAsString(), want.stages().SerializeAsString(), differences);
  Expect("batch", got.batch.SerializeAsString(), want.batch().SerializeAsString(), differences);
  if (got.outputs.size() > kMaxTensors) {
    absl::StrAppend(&differences, "accepted ", got.outputs.size(), " outputs");
  }
  CompareAll(got.outputs, want.outputs(), differences);
  return differences;
}

// The one field of `contents` that has elements, and its bytes where those are kept.
std::pair<InferContents, std::string> ContentsOf(const inference::InferTensorContents& contents) {
  const auto bytes = [](const auto& elements) {
    return std::string(reinterpret_cast<const char*>(elements.data()),
                       static_cast<std::size_t>(elements.size()) * sizeof(elements[0]));
  };
  if (contents.bool_contents_size() > 0) return {InferContents::kBool, ""};
  if (contents.int_contents_size() > 0) return {InferContents::kInt, ""};
  if (contents.int64_contents_size() > 0) {
    return {InferContents::kInt64, bytes(contents.int64_contents())};
  }
  if (contents.uint_contents_size() > 0) return {InferContents::kUint, ""};
  if (contents.uint64_contents_size() > 0) return {InferContents::kUint64, ""};
  if (contents.bytes_contents_size() > 0) return {InferContents::kBytes, ""};
  if (contents.fp32_contents_size() > 0) {
    return {InferContents::kFp32, bytes(contents.fp32_contents())};
  }
  if (contents.fp64_contents_size() > 0) {
    return {InferContents::kFp64, bytes(contents.fp64_contents())};
  }
  return {InferContents::kNone, ""};
}

template <typename Parameters>
void CompareParameter(const std::string& key, const ReceivedParameter& got, const Parameters& want,
                      std::string& differences) {
  using Kind = ReceivedParameter::Kind;
  using Parameter = inference::InferParameter;
  const auto found = want.find(key);
  const Parameter value = found == want.end() ? Parameter() : found->second;
  Kind kind = Kind::kNone;
  std::int64_t number = 0;
  switch (value.parameter_choice_case()) {
    case Parameter::kBoolParam: kind = Kind::kBool, number = value.bool_param(); break;
    case Parameter::kInt64Param: kind = Kind::kInt, number = value.int64_param(); break;
    case Parameter::kUint64Param:
      kind = Kind::kUint, number = static_cast<std::int64_t>(value.uint64_param());
      break;
    case Parameter::kDoubleParam: kind = Kind::kDouble; break;
    case Parameter::kStringParam: kind = Kind::kText; break;
    case Parameter::PARAMETER_CHOICE_NOT_SET: break;
  }
  Expect(key, static_cast<int>(got.kind), static_cast<int>(kind), differences);
  if (got.IsNumber()) Expect(key, got.number, number, differences);
  if (kind == Kind::kText) Expect(key, got.text, value.string_param(), differences);
}

template <typename Parameters>
void CompareSharedMemory(const std::unique_ptr<ReceivedSharedMemory>& got, const Parameters& want,
                         std::string& differences) {
  bool any = false;
  bool unknown = false;
  for (const auto& [key, value] : want) {
    if (!absl::StartsWith(key, "shared_memory_")) continue;
    any = true;
    unknown = unknown || (key != "shared_memory_region" && key != "shared_memory_offset" &&
                          key != "shared_memory_byte_size");
  }
  Expect("in_shared_memory", got != nullptr, any, differences);
  if (got == nullptr) return;
  Expect("unknown", !got->unknown.empty(), unknown, differences);
  CompareParameter("shared_memory_region", got->region, want, differences);
  CompareParameter("shared_memory_offset", got->offset, want, differences);
  CompareParameter("shared_memory_byte_size", got->byte_size, want, differences);
}

// `every`: raw contents are for tensors in shared memory, too.
template <typename Tensors, typename Raw>
void CompareAll(const ReceivedInferTensors& got, const Tensors& want, const Raw& raw, bool every,
                std::string& differences) {
  int next = 0;  // Index into the raw contents.
  Expect("tensors", static_cast<int>(got.size()), want.size(), differences);
  for (int i = 0; i < want.size() && differences.empty(); ++i) {
    const ReceivedInferTensor& tensor = got[static_cast<std::size_t>(i)];
    Expect("name", tensor.name, want[i].name(), differences);
    Expect("datatype", tensor.datatype, want[i].datatype(), differences);
    Expect("shape", absl::StrJoin(tensor.shape, ","), absl::StrJoin(want[i].shape(), ","),
           differences);
    const auto [contents, typed] = ContentsOf(want[i].contents());
    Expect("contents", Name(tensor.contents), Name(contents), differences);
    const bool has_raw = raw.size() > 0 && (every || tensor.shared_memory == nullptr);
    const std::string data = has_raw ? raw[next++] : typed;
    Expect("data_bytes", tensor.data_bytes, static_cast<std::int64_t>(data.size()), differences);
    if (Join(tensor.data) != data) absl::StrAppend(&differences, "data differs\n");
    CompareSharedMemory(tensor.shared_memory, want[i].parameters(), differences);
  }
}

std::string Compare(const InferRequestView& got, const inference::ModelInferRequest& want) {
  std::string differences;
  Expect("model_name", got.model, want.model_name(), differences);
  Expect("model_version", got.version, want.model_version(), differences);
  Expect("id", got.id, want.id(), differences);
  CompareParameter("priority", got.priority, want.parameters(), differences);
  CompareParameter("timeout", got.timeout, want.parameters(), differences);
  CompareAll(got.inputs, want.inputs(), want.raw_input_contents(), false, differences);
  Expect("outputs", static_cast<int>(got.outputs.size()), want.outputs_size(), differences);
  for (int i = 0; i < want.outputs_size() && differences.empty(); ++i) {
    const ReceivedInferOutput& output = got.outputs[static_cast<std::size_t>(i)];
    Expect("name", output.name, want.outputs(i).name(), differences);
    CompareParameter("classification", output.classification, want.outputs(i).parameters(),
                     differences);
    CompareSharedMemory(output.shared_memory, want.outputs(i).parameters(), differences);
  }
  return differences;
}

std::string Compare(const InferResponseView& got, const inference::ModelInferResponse& want) {
  std::string differences;
  Expect("model_name", got.model, want.model_name(), differences);
  Expect("model_version", got.version, want.model_version(), differences);
  Expect("id", got.id, want.id(), differences);
  CompareAll(got.outputs, want.outputs(), want.raw_output_contents(), true, differences);
  return differences;
}

// Compares `part` with the generated class's message, which has the same bytes; if the part's bytes
// are not a message, there is none.
template <typename Generated>
std::string CompareParts(const StreamPartView& part, const Generated& want, bool parses) {
  using Kind = StreamPartView::Kind;
  const std::string bytes = Join(part.bytes);
  std::string differences;
  Expect("size", part.size, static_cast<std::int64_t>(bytes.size()), differences);
  if (part.kind == Kind::kNone || part.kind == Kind::kChunk) {
    if (!parses) return "accepted what protobuf refuses";
    Expect("has_chunk", want.has_chunk(), part.kind == Kind::kChunk, differences);
    if (want.chunk() != bytes) absl::StrAppend(&differences, "the chunk differs\n");
    if (part.kind == Kind::kNone) Expect("part", int{want.part_case()}, 0, differences);
    return differences;
  }
  const auto compare = [&](auto inner, bool is_there, const auto& of_want) {
    const bool inner_parses = inner.ParseFromString(bytes);
    Expect("parses", inner_parses, parses, differences);
    if (!inner_parses || !parses) return;
    Expect("is_there", is_there, true, differences);
    if (inner.SerializeAsString() != of_want.SerializeAsString()) {
      absl::StrAppend(&differences, "the part differs\n");
    }
  };
  if constexpr (std::is_same_v<Generated, v1::NormalizeStreamRequest>) {
    compare(v1::NormalizeRequest(), want.has_header(), want.header());
  } else if (part.kind == Kind::kHeader) {
    compare(v1::NormalizeStreamHeader(), want.has_header(), want.header());
  } else {
    compare(v1::NormalizeStreamTrailer(), want.has_trailer(), want.trailer());
  }
  return differences;
}

template <typename Generated, typename Decode>
std::string PartsDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts,
                              Decode decode) {
  Generated want;
  const bool parses = want.ParseFromArray(wire.data(), static_cast<int>(wire.size()));
  const Slices slices(wire, cuts);
  const absl::StatusOr<StreamPartView> got = decode(slices.views());
  if (got.ok()) return CompareParts(*got, want, parses);
  if (got.status().code() != absl::StatusCode::kInvalidArgument) return got.status().ToString();
  if (!parses || IsCap(got.status())) return "";
  return absl::StrCat("refused what protobuf accepts: ", got.status().message());
}

template <typename Generated, typename Decode>
std::string Disagreement(absl::string_view wire, absl::Span<const std::size_t> cuts,
                         Decode decode) {
  Generated want;
  const bool parses = want.ParseFromArray(wire.data(), static_cast<int>(wire.size()));
  const Slices slices(wire, cuts);
  const auto got = decode(slices.views());
  if (!got.ok()) {
    if (got.status().code() != absl::StatusCode::kInvalidArgument) return got.status().ToString();
    if (!parses || IsCap(got.status())) return "";
    return absl::StrCat("refused what protobuf accepts: ", got.status().message());
  }
  if (!parses) return "accepted what protobuf refuses";
  return Compare(*got, want);
}

}  // namespace

Slices::Slices(absl::string_view wire, absl::Span<const std::size_t> cuts) {
  std::size_t begin = 0;
  auto add = [&](std::size_t end) {
    const std::size_t size = end - begin;
    auto memory = std::make_unique<std::byte[]>(size);
    if (size > 0) std::memcpy(memory.get(), wire.data() + begin, size);
    views_.emplace_back(memory.get(), size);
    memory_.push_back(std::move(memory));
    begin = end;
  };
  for (const std::size_t cut : cuts) add(std::min(cut, wire.size()));
  add(wire.size());
}

std::string Join(absl::Span<const ConstBytes> views) {
  std::string joined;
  for (const ConstBytes view : views) {
    joined.append(reinterpret_cast<const char*>(view.data()), view.size());
  }
  return joined;
}

std::string RequestDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts) {
  return Disagreement<v1::NormalizeRequest>(wire, cuts, DecodeNormalizeRequest);
}

std::string ResponseDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts) {
  return Disagreement<v1::NormalizeResponse>(wire, cuts, DecodeNormalizeResponse);
}

std::string InferRequestDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts) {
  return Disagreement<inference::ModelInferRequest>(wire, cuts, DecodeInferRequest);
}

std::string InferResponseDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts) {
  return Disagreement<inference::ModelInferResponse>(wire, cuts, DecodeInferResponse);
}

std::string StreamRequestDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts) {
  return PartsDisagreement<v1::NormalizeStreamRequest>(wire, cuts, DecodeStreamRequest);
}

std::string StreamResponseDisagreement(absl::string_view wire, absl::Span<const std::size_t> cuts) {
  return PartsDisagreement<v1::NormalizeStreamResponse>(wire, cuts, DecodeStreamResponse);
}

}  // namespace normd::testing
