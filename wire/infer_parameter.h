// Reads the entries of `parameters`, a map of every message of the Open Inference Protocol.

#ifndef NORMD_WIRE_INFER_PARAMETER_H_
#define NORMD_WIRE_INFER_PARAMETER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "wire/message_reader.h"

namespace normd {

// The longest key and the longest text of a parameter that are read.
inline constexpr int kMaxInferParameterBytes = 1024;

// The fields of an entry of a map, by protobuf's rule.
inline constexpr int kMapKeyField = 1;
inline constexpr int kMapValueField = 2;

// A tensor's part of a region of shared memory.
inline constexpr absl::string_view kRegionParameter = "shared_memory_region";
inline constexpr absl::string_view kRegionOffsetParameter = "shared_memory_offset";
inline constexpr absl::string_view kRegionBytesParameter = "shared_memory_byte_size";

// An InferParameter.
struct ReceivedParameter {
  enum class Kind { kNone, kBool, kInt, kUint, kDouble, kText };
  Kind kind = Kind::kNone;
  // With kBool, kInt and kUint. If IsHuge, the bits of the unsigned number.
  std::int64_t number = 0;
  std::string text;  // With kText.

  bool IsNumber() const { return kind == Kind::kInt || kind == Kind::kUint; }
  // 2^63 or more.
  bool IsHuge() const { return kind == Kind::kUint && number < 0; }
  // The number that came, in digits. Requires IsNumber.
  std::string Digits() const;
};

// A tensor's parameters that begin with "shared_memory_".
struct ReceivedSharedMemory {
  ReceivedParameter region;
  ReceivedParameter offset;
  ReceivedParameter byte_size;
  std::string unknown;  // An unknown key with that beginning; empty: none.
};

// Reads the next element of a `parameters` map.
absl::Status ReadParameter(MessageReader& reader, absl::string_view field, std::string& key,
                           ReceivedParameter& value);

// Keeps a tensor's parameter if it is about shared memory.
void TakeTensorParameter(absl::string_view key, ReceivedParameter value,
                         std::unique_ptr<ReceivedSharedMemory>& shared_memory);

// ReadParameter for a tensor: also looks at the key and keeps what is about shared memory.
absl::Status ReadTensorParameter(MessageReader& reader, std::string& key, ReceivedParameter& value,
                                 std::unique_ptr<ReceivedSharedMemory>& shared_memory);

}  // namespace normd

#endif  // NORMD_WIRE_INFER_PARAMETER_H_
