#include "wire/infer_json_request.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/printable.h"
#include "base/shape.h"
#include "wire/data_type.h"
#include "wire/infer_message.h"
#include "wire/json_reader.h"
#include "wire/json_tensor.h"
#include "wire/tensor_message.h"

namespace normd {
namespace {

namespace od = simdjson::ondemand;

static_assert(kJsonPadding >= simdjson::SIMDJSON_PADDING);

constexpr std::size_t kMaxKeyBytesShown = 32;  // What errors repeat of a key.

// The keys of an object that mean something here. Each may come once.
class KnownKeys {
 public:
  explicit KnownKeys(absl::Span<const absl::string_view> keys) : keys_(keys) {}

  // Notes that `key` came, if it is known; InvalidArgument the second time, about `field`.
  absl::Status Note(const JsonField& field, absl::string_view key) {
    const std::uint32_t bit = BitOf(key);
    if ((came_ & bit) != 0) {
      const std::string owner = field.ToString();
      return absl::InvalidArgumentError(
          absl::StrCat(owner, owner.empty() ? "" : ": ", key, " twice, wanted it once"));
    }
    came_ |= bit;
    return absl::OkStatus();
  }
  bool Came(absl::string_view key) const { return (came_ & BitOf(key)) != 0; }

 private:
  // 0 for a key that is not known.
  std::uint32_t BitOf(absl::string_view key) const {
    const auto found = std::find(keys_.begin(), keys_.end(), key);
    return found == keys_.end() ? 0 : std::uint32_t{1} << (found - keys_.begin());
  }

  const absl::Span<const absl::string_view> keys_;
  std::uint32_t came_ = 0;
};
constexpr absl::string_view kRequestKeys[] = {"id", "parameters", "inputs", "outputs"};
constexpr absl::string_view kTensorKeys[] = {"name", "datatype", "shape", "data", "parameters"};
constexpr absl::string_view kParameters[] = {
    "priority",       "timeout",        "binary_data_output",   "binary_data_size",   "binary_data",
    "classification", kRegionParameter, kRegionOffsetParameter, kRegionBytesParameter};

// The values of a parameter, for a message about one that has another.
absl::string_view WantedOf(absl::string_view parameter) {
  if (parameter == "binary_data" || parameter == "binary_data_output") return "true or false";
  if (parameter == kRegionParameter) return "text";
  return absl::c_linear_search(kParameters, parameter) ? "an integer"
                                                       : "true, false, a number or text";
}

// The JSON text; InvalidArgument for a length that the body does not have.
absl::StatusOr<absl::string_view> TextOf(const InferJsonBody& body) {
  const auto size = static_cast<std::int64_t>(body.bytes.size());
  const std::int64_t text = body.json_bytes.value_or(size);
  if (text < 0 || text > size) {
    return absl::InvalidArgumentError(absl::StrCat("Inference-Header-Content-Length: ", text,
                                                   ", wanted at most ", size,
                                                   ", the length of the body"));
  }
  return absl::string_view(reinterpret_cast<const char*>(body.bytes.data()),
                           static_cast<std::size_t>(text));
}

class RequestReader {
 public:
  RequestReader(absl::string_view text, ConstBytes binary, TakeMemory take)
      : reader_(text), binary_(binary), take_(take) {}

  absl::Status Read(InferJsonRequest& request) {
    KnownKeys keys(kRequestKeys);
    absl::Status status = reader_.ReadText([&](absl::string_view key, od::value value) {
      absl::Status noted = keys.Note({}, key);
      return noted.ok() ? ReadRequestField(key, value, request) : noted;
    });
    if (!status.ok()) return status;
    if (request.view.inputs.empty()) {
      return absl::InvalidArgumentError("inputs: none, wanted at least one");
    }
    if (!binary_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "request: ", binary_.size(), " bytes after the last binary tensor, wanted none"));
    }
    for (const std::optional<bool> wanted : wanted_binary_) {
      request.binary.push_back(wanted.value_or(request.all_binary));
    }
    return status;
  }

 private:
  using OnParameter = absl::FunctionRef<absl::Status(
      const JsonField& field, ReceivedParameter value, absl::string_view key)>;

  absl::Status ReadRequestField(absl::string_view key, od::value value, InferJsonRequest& request) {
    const JsonField field{.name = key};
    if (key == "id") return reader_.ReadString(field, value, kMaxInferIdBytes, request.view.id);
    if (key == "inputs") {
      return reader_.ReadArray(field, value,
                               [&](od::value element) { return ReadInput(element, request.view); });
    }
    if (key == "outputs") {
      return reader_.ReadArray(
          field, value, [&](od::value element) { return ReadOutput(element, request.view); });
    }
    if (key != "parameters") return reader_.Drop({}, value);
    return ReadParameters(
        {}, value,
        [&](const JsonField& named, ReceivedParameter parameter, absl::string_view name) {
          if (name == "priority") request.view.priority = std::move(parameter);
          if (name == "timeout") request.view.timeout = std::move(parameter);
          return name == "binary_data_output" ? TakeBool(named, parameter, request.all_binary)
                                              : absl::OkStatus();
        });
  }

  absl::Status ReadInput(od::value element, InferRequestView& view) {
    const JsonField field{.list = "inputs", .index = view.inputs.size()};
    if (absl::Status s = CheckRoom("inputs", view.inputs.size()); !s.ok()) return s;
    ReceivedInferTensor& tensor = view.inputs.emplace_back();
    od::object object;
    if (element.get(object) != simdjson::SUCCESS) {
      return reader_.Refuse(field, JsonToken(element), "an object");
    }
    KnownKeys keys(kTensorKeys);
    std::optional<std::int64_t> binary;
    bool has_data = false;
    bool read = false;
    absl::Status status =
        reader_.ReadFields(field, object, [&](absl::string_view key, od::value value) {
          absl::Status noted = keys.Note(field, key);
          if (!noted.ok()) return noted;
          if (key == "name") {
            return reader_.ReadString(field.Named(".name"), value, kMaxNameBytes, tensor.name);
          }
          if (key == "datatype") {
            return reader_.ReadString(field.Named(".datatype"), value, kMaxNameBytes,
                                      tensor.datatype);
          }
          if (key == "shape") return ReadShape(field.Named(".shape"), value, tensor.shape);
          if (key == "parameters") return ReadInputParameters(field, value, binary, tensor);
          if (key != "data") return reader_.Drop(field, value);
          has_data = true;
          read = keys.Came("datatype") && keys.Came("shape");  // Otherwise they may follow.
          return read ? ReadData(field.Named(".data"), value, tensor) : absl::OkStatus();
        });
    if (!status.ok()) return status;
    if (binary.has_value()) {
      if (has_data) {
        return absl::InvalidArgumentError(absl::StrCat(
            field.Named(".data").ToString(), ": beside binary_data_size, wanted one of the two"));
      }
      return TakeBinary(field, *binary, tensor);
    }
    if (!has_data || read) return status;
    if (object.reset().error() != simdjson::SUCCESS) return reader_.Malformed(field);
    return reader_.ReadFields(field, object, [&](absl::string_view key, od::value value) {
      if (key != "data") return absl::OkStatus();
      const JsonField data = field.Named(".data");
      // A tensor without a shape is refused for that, in its turn.
      return keys.Came("shape") ? ReadData(data, value, tensor) : reader_.Drop(data, value);
    });
  }

  absl::Status ReadShape(const JsonField& field, od::value value, ReceivedShape& shape) {
    return reader_.ReadArray(field, value, [&](od::value element) {
      std::int64_t dim = 0;
      if (element.get(dim) != simdjson::SUCCESS) {
        return reader_.Refuse(field, JsonToken(element), "integers of 64 bits");
      }
      if (shape.size() == kMaxRank) {
        return absl::InvalidArgumentError(absl::StrCat(field.ToString(), ": more than ", kMaxRank,
                                                       " dimensions, wanted at most ", kMaxRank));
      }
      shape.push_back(dim);
      return absl::OkStatus();
    });
  }

  absl::Status ReadData(const JsonField& field, od::value value, ReceivedInferTensor& tensor) {
    const DataTypeNames* type = FindDataType(&DataTypeNames::inference, tensor.datatype);
    const absl::StatusOr<Shape> shape = Shape::Create(tensor.shape);
    if (type == nullptr || !shape.ok()) return reader_.Drop(field, value);
    if (JsonToken(value) != "[") return reader_.Refuse(field, JsonToken(value), "an array");
    // Each number takes two bytes of the text at least: a digit, and a comma or a bracket. A text
    // with fewer than its shape says takes memory for what it can hold, and is refused below.
    const auto most = static_cast<std::int64_t>(reader_.BytesFrom(value) / 2);
    const auto bytes =
        std::min(shape->elements(), most) * static_cast<std::int64_t>(norm::SizeOf(type->dtype));
    if (absl::Status taken = take_(bytes); !taken.ok()) return taken;
    tensor.owned = std::make_shared<std::string>(static_cast<std::size_t>(bytes), '\0');
    const MutableBytes memory(reinterpret_cast<std::byte*>(tensor.owned->data()),
                              tensor.owned->size());
    tensor.data_bytes = bytes;
    if (bytes != 0) tensor.data.assign(1, memory);
    return ReadJsonTensor(reader_, field, value, type->dtype, *shape, memory);
  }

  absl::Status TakeBinary(const JsonField& field, std::int64_t bytes, ReceivedInferTensor& tensor) {
    if (bytes < 0 || bytes > static_cast<std::int64_t>(binary_.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat(field.Named(".parameters[\"binary_data_size\"]").ToString(), ": ", bytes,
                       ", wanted at most ", binary_.size(), ", what is left behind the JSON text"));
    }
    tensor.data_bytes = bytes;
    if (bytes != 0) tensor.data.push_back(binary_.first(static_cast<std::size_t>(bytes)));
    binary_.remove_prefix(static_cast<std::size_t>(bytes));
    return absl::OkStatus();
  }

  absl::Status ReadOutput(od::value element, InferRequestView& view) {
    const JsonField field{.list = "outputs", .index = view.outputs.size()};
    if (absl::Status s = CheckRoom("outputs", view.outputs.size()); !s.ok()) return s;
    ReceivedInferOutput& output = view.outputs.emplace_back();
    std::optional<bool>& binary = wanted_binary_.emplace_back();
    KnownKeys keys(kTensorKeys);
    return reader_.ReadObject(field, element, [&](absl::string_view key, od::value value) {
      absl::Status noted = keys.Note(field, key);
      if (!noted.ok()) return noted;
      if (key == "name") {
        return reader_.ReadString(field.Named(".name"), value, kMaxNameBytes, output.name);
      }
      if (key != "parameters") return reader_.Drop(field, value);
      return ReadParameters(
          field, value,
          [&](const JsonField& named, ReceivedParameter parameter, absl::string_view name) {
            if (name == "binary_data") return TakeBool(named, parameter, binary.emplace());
            if (name == "classification") output.classification = parameter;
            TakeTensorParameter(name, std::move(parameter), output.shared_memory);
            return absl::OkStatus();
          });
    });
  }

  absl::Status ReadInputParameters(const JsonField& field, od::value value,
                                   std::optional<std::int64_t>& binary,
                                   ReceivedInferTensor& tensor) {
    return ReadParameters(
        field, value,
        [&](const JsonField& named, ReceivedParameter parameter, absl::string_view name) {
          if (name != "binary_data_size") {
            TakeTensorParameter(name, std::move(parameter), tensor.shared_memory);
            return absl::OkStatus();
          }
          if (!parameter.IsNumber() || parameter.IsHuge()) {
            return absl::InvalidArgumentError(
                absl::StrCat(named.ToString(), ": not an integer, wanted a number of bytes"));
          }
          binary = parameter.number;
          return absl::OkStatus();
        });
  }

  absl::Status ReadParameters(const JsonField& owner, od::value value, OnParameter on_parameter) {
    const JsonField all = owner.Named(owner.list.empty() ? "parameters" : ".parameters");
    KnownKeys keys(kParameters);
    return reader_.ReadObject(all, value, [&](absl::string_view key, od::value inner) {
      if (key.size() > kMaxInferParameterBytes) {
        return absl::InvalidArgumentError(absl::StrCat(
            all.ToString(), ": ", key.size(), " bytes, wanted at most ", kMaxInferParameterBytes));
      }
      absl::Status status = keys.Note(all, key);
      const std::string name(key);
      const std::string shown =
          absl::StrCat(all.name, "[\"", Printable(name, kMaxKeyBytesShown), "\"]");
      const JsonField field = owner.Named(shown);
      ReceivedParameter parameter;
      if (status.ok()) status = ReadParameter(field, name, inner, parameter);
      return status.ok() ? on_parameter(field, std::move(parameter), name) : status;
    });
  }

  absl::Status ReadParameter(const JsonField& field, absl::string_view key, od::value value,
                             ReceivedParameter& parameter) {
    using Kind = ReceivedParameter::Kind;
    bool flag = false;
    std::uint64_t huge = 0;
    const absl::string_view token = JsonToken(value);
    if (!token.empty() && token.front() == '"') {
      parameter.kind = Kind::kText;
      return reader_.ReadString(field, value, kMaxInferParameterBytes, parameter.text);
    }
    if (value.get(flag) == simdjson::SUCCESS) {
      parameter.kind = Kind::kBool;
      parameter.number = flag ? 1 : 0;
    } else if (value.get(parameter.number) == simdjson::SUCCESS) {
      parameter.kind = Kind::kInt;
    } else if (value.get(huge) == simdjson::SUCCESS) {
      parameter.kind = Kind::kUint;
      parameter.number = static_cast<std::int64_t>(huge);
    } else if (IsJsonNumber(token)) {
      parameter.kind = Kind::kDouble;
    } else {
      return reader_.Refuse(field, token, WantedOf(key));
    }
    return absl::OkStatus();
  }

  static absl::Status TakeBool(const JsonField& field, const ReceivedParameter& parameter,
                               bool& flag) {
    flag = parameter.number != 0;
    if (parameter.kind == ReceivedParameter::Kind::kBool) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(field.ToString(), ": not a boolean, wanted true or false"));
  }

  JsonReader reader_;
  ConstBytes binary_;  // What is left of the binary tensors.
  const TakeMemory take_;
  // Whether each output is wanted as a binary tensor; null: as the request says of all.
  absl::InlinedVector<std::optional<bool>, 1> wanted_binary_;
};

}  // namespace

absl::StatusOr<InferJsonRequest> DecodeInferJson(const InferJsonBody& body, TakeMemory take) {
  const absl::StatusOr<absl::string_view> text = TextOf(body);
  if (!text.ok()) return text.status();
  InferJsonRequest request;
  // The parser's index of a text, whatever that is.
  request.freed_bytes = static_cast<std::int64_t>(text->size()) * JsonReader::kIndexBytes;
  absl::Status status = take(request.freed_bytes);
  if (!status.ok()) return status;
  RequestReader reader(*text, body.bytes.subspan(text->size()), take);
  status = reader.Read(request);
  if (!status.ok()) return status;
  return request;
}

}  // namespace normd
