#include "wire/infer_tensor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "inference/grpc_service.pb.h"

namespace normd {
namespace {

using Input = inference::ModelInferRequest_InferInputTensor;
using Contents = inference::InferTensorContents;

// One input with elements in two fields is refused: no client means it.
absl::Status NoteContents(const MessageReader& reader, InferContents field,
                          ReceivedInferTensor& tensor) {
  if (tensor.contents != InferContents::kNone && tensor.contents != field) {
    return absl::InvalidArgumentError(absl::StrCat(reader.Within(),
                                                   ".contents: ", Name(tensor.contents), " and ",
                                                   Name(field), ", wanted at most one of them"));
  }
  tensor.contents = field;
  return absl::OkStatus();
}

// Copies the tensor's elements so far, so that more can be appended.
std::string& Own(ReceivedInferTensor& tensor) {
  if (tensor.owned != nullptr) return *tensor.owned;
  tensor.owned = std::make_shared<std::string>();
  for (const ConstBytes view : tensor.data) {
    tensor.owned->append(reinterpret_cast<const char*>(view.data()), view.size());
  }
  return *tensor.owned;
}

// Packed elements have the same form on the wire as in memory: little-endian, adjacent.
absl::Status ReadPackedElements(MessageReader& reader, InferContents field, std::size_t size,
                                ReceivedInferTensor& tensor) {
  absl::InlinedVector<ConstBytes, 4> views;
  std::int64_t bytes = 0;
  absl::Status status = reader.ReadViews(".contents", views, bytes);
  if (!status.ok()) return status;
  if (bytes % static_cast<std::int64_t>(size) != 0) return reader.Malformed(".contents");
  if (bytes == 0) return absl::OkStatus();
  if (status = NoteContents(reader, field, tensor); !status.ok()) return status;
  const bool first = tensor.data_bytes == 0;
  tensor.data_bytes += bytes;
  if (first) {
    tensor.data = std::move(views);
    return absl::OkStatus();
  }
  // Views of many small fields would take more memory than their bytes.
  std::string& owned = Own(tensor);
  for (const ConstBytes view : views) {
    owned.append(reinterpret_cast<const char*>(view.data()), view.size());
  }
  return absl::OkStatus();
}

absl::Status ReadElement(MessageReader& reader, InferContents field, std::size_t size,
                         ReceivedInferTensor& tensor) {
  char element[8];
  absl::Status status = reader.ReadFixed(".contents", element, size);
  if (!status.ok()) return status;
  if (status = NoteContents(reader, field, tensor); !status.ok()) return status;
  Own(tensor).append(element, size);
  tensor.data_bytes += static_cast<std::int64_t>(size);
  return absl::OkStatus();
}

// Indexes take up to eight times their bytes on the wire, before anything is admitted.
constexpr std::int64_t kMaxInt64Contents = std::int64_t{64} << 10;

absl::Status ReadInt64(MessageReader& reader, ReceivedInferTensor& tensor) {
  std::int64_t value = 0;
  absl::Status status = reader.ReadInt(".contents", value);
  if (status.ok()) status = NoteContents(reader, InferContents::kInt64, tensor);
  if (!status.ok()) return status;
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(value));
  if (tensor.data_bytes == kMaxInt64Contents * kBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(reader.Within(), ".contents: more than ", kMaxInt64Contents, " in ",
                     Name(InferContents::kInt64), ", wanted raw_input_contents for so many"));
  }
  Own(tensor).append(reinterpret_cast<const char*>(&value), sizeof(value));
  tensor.data_bytes += kBytes;
  return absl::OkStatus();
}

absl::Status DropVarint(MessageReader& reader, InferContents field, ReceivedInferTensor& tensor) {
  std::int64_t value = 0;
  absl::Status status = reader.ReadInt(".contents", value);
  return status.ok() ? NoteContents(reader, field, tensor) : status;
}

absl::Status DropVarints(MessageReader& reader, InferContents field, ReceivedInferTensor& tensor) {
  return reader.ReadPacked(".contents", [&] { return DropVarint(reader, field, tensor); });
}

absl::Status ReadContents(MessageReader& reader, std::uint32_t tag, ReceivedInferTensor& tensor) {
  switch (tag) {
    case DelimitedTag(Contents::kFp32ContentsFieldNumber):
      return ReadPackedElements(reader, InferContents::kFp32, 4, tensor);
    case Fixed32Tag(Contents::kFp32ContentsFieldNumber):
      return ReadElement(reader, InferContents::kFp32, 4, tensor);
    case DelimitedTag(Contents::kFp64ContentsFieldNumber):
      return ReadPackedElements(reader, InferContents::kFp64, 8, tensor);
    case Fixed64Tag(Contents::kFp64ContentsFieldNumber):
      return ReadElement(reader, InferContents::kFp64, 8, tensor);
    case DelimitedTag(Contents::kInt64ContentsFieldNumber):
      return reader.ReadPacked(".contents", [&] { return ReadInt64(reader, tensor); });
    case VarintTag(Contents::kInt64ContentsFieldNumber): return ReadInt64(reader, tensor);
    case DelimitedTag(Contents::kBoolContentsFieldNumber):
    case DelimitedTag(Contents::kIntContentsFieldNumber):
    case DelimitedTag(Contents::kUintContentsFieldNumber):
    case DelimitedTag(Contents::kUint64ContentsFieldNumber):
      return DropVarints(reader, static_cast<InferContents>(tag >> 3), tensor);
    case VarintTag(Contents::kBoolContentsFieldNumber):
    case VarintTag(Contents::kIntContentsFieldNumber):
    case VarintTag(Contents::kUintContentsFieldNumber):
    case VarintTag(Contents::kUint64ContentsFieldNumber):
      return DropVarint(reader, static_cast<InferContents>(tag >> 3), tensor);
    case DelimitedTag(Contents::kBytesContentsFieldNumber): {
      absl::Status status = reader.SkipUnknown(tag);
      return status.ok() ? NoteContents(reader, InferContents::kBytes, tensor) : status;
    }
    default: return reader.SkipUnknown(tag);
  }
}
static_assert(static_cast<int>(InferContents::kBool) == Contents::kBoolContentsFieldNumber);
static_assert(static_cast<int>(InferContents::kFp32) == Contents::kFp32ContentsFieldNumber);
static_assert(static_cast<int>(InferContents::kBytes) == Contents::kBytesContentsFieldNumber);

absl::Status ReadField(MessageReader& reader, std::uint32_t tag, ReceivedInferTensor& tensor) {
  switch (tag) {
    case DelimitedTag(Input::kNameFieldNumber):
      return reader.ReadText(".name", kMaxNameBytes, tensor.name);
    case DelimitedTag(Input::kDatatypeFieldNumber):
      return reader.ReadText(".datatype", kMaxNameBytes, tensor.datatype);
    case VarintTag(Input::kShapeFieldNumber): return ReadDimension(reader, tensor.shape);
    case DelimitedTag(Input::kShapeFieldNumber):
      return reader.ReadPacked(".shape", [&] { return ReadDimension(reader, tensor.shape); });
    case DelimitedTag(Input::kParametersFieldNumber): {
      std::string key;
      ReceivedParameter value;
      return ReadTensorParameter(reader, key, value, tensor.shared_memory);
    }
    case DelimitedTag(Input::kContentsFieldNumber):
      return reader.ReadSubmessage(
          ".contents", [&](std::uint32_t inner) { return ReadContents(reader, inner, tensor); });
    default: return reader.SkipUnknown(tag);
  }
}

}  // namespace

absl::string_view Name(InferContents contents) {
  switch (contents) {
    case InferContents::kNone: return "";
    case InferContents::kBool: return "bool_contents";
    case InferContents::kInt: return "int_contents";
    case InferContents::kInt64: return "int64_contents";
    case InferContents::kUint: return "uint_contents";
    case InferContents::kUint64: return "uint64_contents";
    case InferContents::kFp32: return "fp32_contents";
    case InferContents::kFp64: return "fp64_contents";
    case InferContents::kBytes: return "bytes_contents";
  }
  return "";
}

absl::Status ReadInferTensor(MessageReader& reader, absl::string_view list,
                             ReceivedInferTensors& tensors) {
  absl::Status status =
      AppendElement(reader, list, tensors, [&](std::uint32_t tag, ReceivedInferTensor& tensor) {
        return ReadField(reader, tag, tensor);
      });
  if (!status.ok()) return status;
  ReceivedInferTensor& tensor = tensors.back();
  if (tensor.owned != nullptr) {
    tensor.data.assign(1, ConstBytes(reinterpret_cast<const std::byte*>(tensor.owned->data()),
                                     tensor.owned->size()));
  }
  return status;
}

absl::Status ReadRawContents(MessageReader& reader, absl::string_view field,
                             ReceivedRawList& contents) {
  if (absl::Status status = CheckRoom(field, contents.size()); !status.ok()) return status;
  ReceivedRawContents& raw = contents.emplace_back();
  return reader.ReadViews(field, raw.data, raw.data_bytes);
}

absl::Status TakeRawContents(RawContentsFor whose, absl::string_view field,
                             ReceivedRawList contents, absl::string_view list,
                             ReceivedInferTensors& tensors) {
  if (contents.empty()) return absl::OkStatus();
  const auto has_contents = [whose](const ReceivedInferTensor& tensor) {
    return whose == RawContentsFor::kAll || tensor.shared_memory == nullptr;
  };
  const auto wanted =
      static_cast<std::size_t>(std::count_if(tensors.begin(), tensors.end(), has_contents));
  if (contents.size() != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", contents.size(), ", wanted ", wanted, ", one for each of ", list,
                     wanted == tensors.size() ? "" : " that is not in shared memory"));
  }
  auto next = contents.begin();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!has_contents(tensors[i])) continue;
    if (tensors[i].contents != InferContents::kNone) {
      return absl::InvalidArgumentError(absl::StrCat(list, "[", i,
                                                     "].contents: ", Name(tensors[i].contents),
                                                     " beside ", field, ", wanted one of the two"));
    }
    tensors[i].data = std::move(next->data);
    tensors[i].data_bytes = next->data_bytes;
    ++next;
  }
  return absl::OkStatus();
}

}  // namespace normd
