#include "operations/safetensors_header.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/printable.h"

namespace normd {
namespace {

std::string NamedTensor(absl::string_view name) {
  return absl::StrCat("tensor \"", Printable(name, 64), "\"");
}

// 0 for a name that is not one of the format's types. Most of them are of no use here, but a file
// may have them beside the parameters.
std::int64_t BitsOfType(absl::string_view dtype) {
  static constexpr std::pair<absl::string_view, std::int64_t> kBits[] = {
      {"F64", 64},    {"F32", 32},    {"F16", 16},        {"BF16", 16},       {"I64", 64},
      {"I32", 32},    {"I16", 16},    {"I8", 8},          {"U64", 64},        {"U32", 32},
      {"U16", 16},    {"U8", 8},      {"BOOL", 8},        {"C64", 64},        {"F8_E5M2", 8},
      {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6},
      {"F6_E3M2", 6}, {"F4", 4}};
  for (const auto& [name, bits] : kBits) {
    if (name == dtype) return bits;
  }
  return 0;
}

// Nullopt when it does not fit or ends inside a byte.
std::optional<std::int64_t> BytesOf(const Shape& shape, absl::string_view dtype) {
  const std::optional<std::int64_t> bits = CheckedMultiply(shape.elements(), BitsOfType(dtype));
  // If the number of bits does not fit, whole bytes still may.
  if (!bits && BitsOfType(dtype) % 8 == 0) {
    return CheckedMultiply(shape.elements(), BitsOfType(dtype) / 8);
  }
  if (!bits || *bits % 8 != 0) return std::nullopt;
  return *bits / 8;
}

// The parser's current construct; one level of nesting each.
enum class Level { kFile, kHeader, kMetadata, kTensor, kShape, kOffsets };

// Processes the header's tokens as the parser reads them, without a tree: a tree would drop the
// first of two equal names, and cost many times the header's length. Any token that is out of place
// ends the parse, so Level bounds the nesting.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  // The result, or the reason why the parse ended.
  absl::StatusOr<std::vector<TensorEntry>> Take() {
    if (!error_.ok()) return error_;
    return std::move(tensors_);
  }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return level_ == Level::kShape || level_ == Level::kOffsets
               ? Stop(absl::StrCat(Where(), value, ", wanted at least 0"))
               : Unexpected("a number");
  }
  bool number_float(number_float_t, const string_t& text) override {
    return level_ == Level::kShape || level_ == Level::kOffsets
               ? Stop(absl::StrCat(Where(), Printable(text, 32), ", wanted an integer below 2^63"))
               : Unexpected("a number");
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<std::int64_t>::max())) {
      return number_float(0, std::to_string(value));
    }
    const auto number = static_cast<std::int64_t>(value);
    if (level_ == Level::kShape) {
      if (dims_.size() == kMaxRank) {
        return Stop(absl::StrCat(Where(), "more than ", kMaxRank, " dimensions"));
      }
      dims_.push_back(number);
      return true;
    }
    if (level_ == Level::kOffsets) {
      if (offsets_.size() == 2) return Stop(absl::StrCat(Where(), "more than 2 numbers"));
      offsets_.push_back(number);
      return true;
    }
    return Unexpected("a number");
  }
  bool string(string_t& value) override {
    if (level_ == Level::kMetadata) return true;
    if (level_ != Level::kTensor || field_ != "dtype") return Unexpected("a string");
    if (BitsOfType(value) == 0) {
      return Stop(absl::StrCat(Where(), "\"", Printable(value, 32), "\" is unknown"));
    }
    tensor_.dtype = std::move(value);
    return true;
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool start_object(std::size_t) override {
    if (level_ == Level::kFile) {
      level_ = Level::kHeader;
    } else if (level_ == Level::kHeader && field_ == "__metadata__") {
      level_ = Level::kMetadata;
    } else if (level_ == Level::kHeader) {
      level_ = Level::kTensor;
      tensor_ = TensorEntry{};
      tensor_.name = std::exchange(field_, {});
      has_shape_ = has_offsets_ = false;
    } else {
      return Unexpected("an object");
    }
    return true;
  }
  bool key(string_t& value) override {
    if (level_ == Level::kMetadata) return true;
    if (level_ == Level::kHeader) {
      if (!names_.insert(value).second) return Stop(absl::StrCat(NamedTensor(value), ": twice"));
    } else if (value != "dtype" && value != "shape" && value != "data_offsets") {
      return Stop(absl::StrCat(NamedTensor(tensor_.name), ": unknown field \"",
                               Printable(value, 32), "\", wanted dtype, shape and data_offsets"));
    } else if (value == "dtype" ? !tensor_.dtype.empty()
                                : (value == "shape" ? has_shape_ : has_offsets_)) {
      return Stop(absl::StrCat(NamedTensor(tensor_.name), ": ", value, " twice"));
    }
    field_ = std::move(value);
    return true;
  }
  bool end_object() override {
    if (level_ == Level::kTensor) {
      level_ = Level::kHeader;
      return EndTensor();
    }
    level_ = level_ == Level::kMetadata ? Level::kHeader : Level::kFile;
    return true;
  }
  bool start_array(std::size_t) override {
    if (level_ != Level::kTensor || field_ == "dtype") return Unexpected("an array");
    level_ = field_ == "shape" ? Level::kShape : Level::kOffsets;
    (level_ == Level::kShape ? dims_ : offsets_).clear();
    return true;
  }
  bool end_array() override {
    (level_ == Level::kShape ? has_shape_ : has_offsets_) = true;
    level_ = Level::kTensor;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    // The parser's own text quotes the file at length.
    return Stop(absl::StrCat("not valid JSON at byte ", position));
  }

 private:
  bool Stop(absl::string_view reason) {
    if (error_.ok()) error_ = absl::InvalidArgumentError(absl::StrCat("header: ", reason));
    return false;
  }
  bool Unexpected(absl::string_view what) {
    return Stop(absl::StrCat(Where(), "unexpected ", what));
  }
  std::string Where() const {
    switch (level_) {
      case Level::kFile: return "";
      case Level::kMetadata: return "__metadata__: ";
      case Level::kHeader: return absl::StrCat(NamedTensor(field_), ": ");
      default: return absl::StrCat(NamedTensor(tensor_.name), ": ", field_, ": ");
    }
  }

  // Checks one entry by itself: type, shape and offsets agree.
  bool EndTensor() {
    const std::string where = NamedTensor(tensor_.name);
    if (tensor_.dtype.empty() || !has_shape_ || !has_offsets_) {
      return Stop(absl::StrCat(where, ": ",
                               tensor_.dtype.empty() ? "dtype"
                               : has_shape_          ? "data_offsets"
                                                     : "shape",
                               " missing"));
    }
    if (offsets_.size() != 2 || offsets_[0] > offsets_[1]) {
      return Stop(absl::StrCat(where, ": data_offsets: [", absl::StrJoin(offsets_, ", "),
                               "], wanted [begin, end] with begin <= end"));
    }
    absl::StatusOr<Shape> shape = Shape::Create(dims_);
    if (!shape.ok()) return Stop(absl::StrCat(where, ": ", shape.status().message()));
    const std::optional<std::int64_t> bytes = BytesOf(*shape, tensor_.dtype);
    const std::int64_t held = offsets_[1] - offsets_[0];
    if (!bytes || *bytes != held) {
      return Stop(absl::StrCat(where, ": data_offsets: ", held, " bytes, wanted ",
                               bytes ? absl::StrCat(*bytes) : "whole ones below 2^63", " for ",
                               tensor_.dtype, " ", shape->ToString()));
    }
    tensor_.shape = *std::move(shape);
    tensor_.begin = offsets_[0];
    tensor_.end = offsets_[1];
    tensors_.push_back(std::move(tensor_));
    return true;
  }

  Level level_ = Level::kFile;
  std::string field_;  // The last key of the header or of a tensor.
  TensorEntry tensor_;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::vector<std::int64_t> dims_;
  std::vector<std::int64_t> offsets_;
  std::vector<TensorEntry> tensors_;
  absl::flat_hash_set<std::string> names_;
  absl::Status error_;
};

absl::StatusOr<std::vector<TensorEntry>> Parse(absl::string_view json) {
  HeaderReader reader;
  try {
    if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader)) {
      const absl::StatusOr<std::vector<TensorEntry>> result = reader.Take();
      return result.ok() ? absl::InvalidArgumentError("header: not valid JSON") : result.status();
    }
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("header: ", Printable(e.what())));
  }
  return reader.Take();
}

}  // namespace

absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(absl::string_view json,
                                                                std::int64_t data_bytes) {
  // The parser takes a NUL for the end of its input and skips a byte order mark; the format allows
  // neither.
  if (json.empty() || json.front() != '{') {
    return absl::InvalidArgumentError("header: does not begin with '{'");
  }
  if (json.find('\0') != absl::string_view::npos) {
    return absl::InvalidArgumentError("header: holds a NUL byte");
  }
  absl::StatusOr<std::vector<TensorEntry>> tensors = Parse(json);
  if (!tensors.ok()) return tensors;
  std::sort(tensors->begin(), tensors->end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  std::int64_t covered = 0;
  for (const TensorEntry& tensor : *tensors) {
    if (tensor.begin != covered) {
      return absl::InvalidArgumentError(absl::StrCat(
          "header: ", NamedTensor(tensor.name), ": data_offsets begin at ", tensor.begin,
          tensor.begin < covered ? ", inside another tensor" : ", after a hole", ", wanted ",
          covered));
    }
    if (tensor.end > data_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("header: ", NamedTensor(tensor.name), ": data_offsets end at ", tensor.end,
                       ", but the file holds ", data_bytes, " bytes of data"));
    }
    covered = tensor.end;
  }
  if (covered != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the tensors end at byte ", covered, " of the data, but the file holds ", data_bytes));
  }
  return tensors;
}

}  // namespace normd
