#include "wire/infer_parameter.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "inference/grpc_service.pb.h"

namespace normd {
namespace {

using Parameter = inference::InferParameter;

constexpr absl::string_view kSharedMemory = "shared_memory_";

constexpr std::size_t kMaxKeyShown = 32;  // Bytes of a key that an error repeats.

// The parameter as errors name it; a key that follows its value is not known yet.
std::string Named(absl::string_view field, absl::string_view key) {
  if (key.empty()) return std::string(field);
  return absl::StrCat(field, "[\"", Printable(key, kMaxKeyShown), "\"]");
}

absl::Status ReadValue(MessageReader& reader, absl::string_view field, absl::string_view key,
                       std::uint32_t tag, ReceivedParameter& value) {
  using Kind = ReceivedParameter::Kind;
  switch (tag) {
    case VarintTag(Parameter::kBoolParamFieldNumber):
      value.kind = Kind::kBool;
      return reader.ReadInt(field, value.number);
    case VarintTag(Parameter::kInt64ParamFieldNumber):
      value.kind = Kind::kInt;
      return reader.ReadInt(field, value.number);
    case VarintTag(Parameter::kUint64ParamFieldNumber):
      value.kind = Kind::kUint;
      return reader.ReadInt(field, value.number);
    case Fixed64Tag(Parameter::kDoubleParamFieldNumber): {
      value.kind = Kind::kDouble;
      char unused[8];
      return reader.ReadFixed(field, unused, sizeof(unused));
    }
    case DelimitedTag(Parameter::kStringParamFieldNumber): {
      value.kind = Kind::kText;
      return reader.ReadText(Named(field, key), kMaxInferParameterBytes, value.text);
    }
    default: return reader.SkipUnknown(tag);
  }
}

}  // namespace

std::string ReceivedParameter::Digits() const {
  return IsHuge() ? absl::StrCat(static_cast<std::uint64_t>(number)) : absl::StrCat(number);
}

absl::Status ReadParameter(MessageReader& reader, absl::string_view field, std::string& key,
                           ReceivedParameter& value) {
  return reader.ReadSubmessage(field, [&](std::uint32_t tag) {
    switch (tag) {
      case DelimitedTag(kMapKeyField): return reader.ReadText(field, kMaxInferParameterBytes, key);
      case DelimitedTag(kMapValueField):
        return reader.ReadSubmessage(field, [&](std::uint32_t inner) {
          return ReadValue(reader, field, key, inner, value);
        });
      default: return reader.SkipUnknown(tag);
    }
  });
}

void TakeTensorParameter(absl::string_view key, ReceivedParameter value,
                         std::unique_ptr<ReceivedSharedMemory>& shared_memory) {
  if (!absl::StartsWith(key, kSharedMemory)) return;
  if (shared_memory == nullptr) shared_memory = std::make_unique<ReceivedSharedMemory>();
  if (key == kRegionParameter) {
    shared_memory->region = std::move(value);
  } else if (key == kRegionOffsetParameter) {
    shared_memory->offset = std::move(value);
  } else if (key == kRegionBytesParameter) {
    shared_memory->byte_size = std::move(value);
  } else {
    shared_memory->unknown = std::string(key);
  }
}

absl::Status ReadTensorParameter(MessageReader& reader, std::string& key, ReceivedParameter& value,
                                 std::unique_ptr<ReceivedSharedMemory>& shared_memory) {
  absl::Status status = ReadParameter(reader, ".parameters", key, value);
  if (status.ok() && absl::StartsWith(key, kSharedMemory)) {
    TakeTensorParameter(key, std::move(value), shared_memory);
  }
  return status;
}

}  // namespace normd
