#include "wire/json_tensor.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "wire/json_number.h"

namespace normd {
namespace {

namespace od = simdjson::ondemand;

// How an element of a type is read: false if the type does not hold the number.
template <FloatFormat kFormat, typename Bits>
struct SmallFloat {
  static constexpr std::size_t kBytes = sizeof(Bits);
  static constexpr absl::string_view kWanted = kFormat.mantissa_bits == 23 ? "a finite FP32 number"
                                               : kFormat.mantissa_bits == 10
                                                   ? "a finite FP16 number"
                                                   : "a finite BF16 number";

  static bool Read(const JsonNumber& number, std::byte* out) {
    const auto bits = RoundTo<kFormat>(NearestDouble(number), number.text);
    const auto stored = static_cast<Bits>(bits.value_or(0));
    std::memcpy(out, &stored, sizeof(stored));
    return bits.has_value();
  }
};

struct Double {
  static constexpr std::size_t kBytes = sizeof(double);
  static constexpr absl::string_view kWanted = "a finite FP64 number";

  static bool Read(const JsonNumber& number, std::byte* out) {
    const double nearest = NearestDouble(number);
    std::memcpy(out, &nearest, sizeof(nearest));
    return std::isfinite(nearest);
  }
};

template <typename Int>
struct Integer {
  using Limits = std::numeric_limits<Int>;
  static constexpr std::size_t kBytes = sizeof(Int);
  static constexpr absl::string_view kWanted =
      sizeof(Int) == 8    ? "an integer from -9223372036854775808 to 9223372036854775807"
      : Limits::is_signed ? "an integer from -128 to 127"
                          : "an integer from 0 to 255";

  static bool Read(const JsonNumber& number, std::byte* out) {
    const std::uint64_t most = static_cast<std::uint64_t>(Limits::max());
    const std::uint64_t least = static_cast<std::uint64_t>(Limits::is_signed ? most + 1 : 0);
    if (!number.is_integer || !number.exact) return false;
    if (number.digits > (number.negative ? least : most)) return false;
    const auto stored =
        static_cast<Int>(number.negative ? std::uint64_t{0} - number.digits : number.digits);
    std::memcpy(out, &stored, sizeof(stored));
    return true;
  }
};

const char* SkipSpace(const char* at) {
  while (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r') ++at;
  return at;
}

// Reads levels of arrays, one for each of `dims`. simdjson has found their brackets, and walks over
// the outer levels; rows of numbers are read here, which is faster. (Version 3.0 also misreads
// "0.1000000000000000000001".)
template <typename Element>
class LevelReader {
 public:
  LevelReader(JsonReader& reader, const JsonField& field, absl::Span<const std::int64_t> dims,
              std::byte* next)
      : reader_(reader), field_(field), dims_(dims), next_(next) {}

  absl::Status Read(od::value value, std::size_t level) {
    if (JsonToken(value) != "[") {
      return reader_.Refuse({.name = PlaceOf(level)}, JsonToken(value), "an array");
    }
    std::int64_t& index = indexes_[level];
    index = 0;
    absl::Status status = level + 1 == dims_.size() ? ReadRow(value.raw_json_token().data(), level)
                                                    : ReadRows(value, level);
    if (!status.ok() || index == dims_[level]) return status;
    return WrongCount(level, absl::StrCat(index));
  }

 private:
  absl::Status ReadRows(od::value value, std::size_t level) {
    return reader_.ReadArray(field_, value, [&](od::value row) {
      if (indexes_[level] == dims_[level] && JsonToken(row) != "]") return TooMany(level);
      absl::Status status = Read(row, level + 1);
      ++indexes_[level];
      return status;
    });
  }

  // The array that begins at `at`; the text's last byte is a brace.
  absl::Status ReadRow(const char* at, std::size_t level) {
    const std::int64_t wanted = dims_[level];
    std::int64_t index = 0;
    at = SkipSpace(at + 1);
    if (*at == ']') return absl::OkStatus();
    for (;; at = SkipSpace(at + 1)) {
      indexes_[level] = index;
      if (index == wanted && *at != ']') return TooMany(level);
      const JsonNumber number = ScanJsonNumber(at);
      const char* const end = SkipSpace(at + number.text.size());
      const bool is_number = !number.text.empty() && (*end == ',' || *end == ']');
      if (!is_number || !Element::Read(number, next_)) {
        return reader_.Refuse({.name = PlaceOf(level + 1)}, reader_.TokenAt(at), Element::kWanted);
      }
      next_ += Element::kBytes;
      ++index;
      at = end;
      if (*at == ']') break;
    }
    indexes_[level] = index;
    return absl::OkStatus();
  }

  // "inputs[0].data[1][2]"
  std::string PlaceOf(std::size_t levels) const {
    std::string place = field_.ToString();
    for (std::size_t i = 0; i < levels; ++i) absl::StrAppend(&place, "[", indexes_[i], "]");
    return place;
  }

  absl::Status TooMany(std::size_t level) const {
    return WrongCount(level, absl::StrCat("more than ", dims_[level]));
  }
  absl::Status WrongCount(std::size_t level, absl::string_view got) const {
    return absl::InvalidArgumentError(absl::StrCat(PlaceOf(level), ": ", got, " elements, wanted ",
                                                   dims_[level], ", as its shape says"));
  }

  JsonReader& reader_;
  const JsonField& field_;
  const absl::Span<const std::int64_t> dims_;
  std::byte* next_;
  std::int64_t indexes_[kMaxRank] = {};
};

}  // namespace

absl::Status ReadJsonTensor(JsonReader& reader, const JsonField& field, od::value data,
                            norm::DType dtype, const Shape& shape, MutableBytes elements) {
  const std::int64_t count = shape.elements();
  const bool nested = shape.rank() > 1 && reader.HoldsArray(data);
  const absl::Span<const std::int64_t> dims = nested ? shape.dims() : absl::MakeSpan(&count, 1);
  const auto read = [&]<typename Element>(Element) {
    return LevelReader<Element>(reader, field, dims, elements.data()).Read(data, 0);
  };
  switch (dtype) {
    case norm::DType::kFloat32: return read(SmallFloat<kFloat32Format, std::uint32_t>());
    case norm::DType::kFloat64: return read(Double());
    case norm::DType::kFloat16: return read(SmallFloat<kFloat16Format, std::uint16_t>());
    case norm::DType::kBFloat16: return read(SmallFloat<kBFloat16Format, std::uint16_t>());
    case norm::DType::kInt8: return read(Integer<std::int8_t>());
    case norm::DType::kFloat8E4M3: return read(Integer<std::uint8_t>());
    case norm::DType::kInt64: return read(Integer<std::int64_t>());
  }
  return absl::InvalidArgumentError(absl::StrCat(field.ToString(), ": no type"));
}

}  // namespace normd
