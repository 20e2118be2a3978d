#include "wire/json_tensor.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "wire/json_number.h"

namespace normd {
namespace {

namespace od = simdjson::ondemand;

// How elements of a type are read: false for a value that the type does not hold.
template <FloatFormat kFormat, typename Bits>
struct SmallFloat {
  static constexpr std::size_t kBytes = sizeof(Bits);
  static constexpr absl::string_view kWanted = kFormat.mantissa_bits == 23 ? "a finite FP32 number"
                                               : kFormat.mantissa_bits == 10
                                                   ? "a finite FP16 number"
                                                   : "a finite BF16 number";

  static bool Read(od::value value, std::byte* out) {
    const std::string_view token = value.raw_json_token();
    double nearest = 0;
    if (value.get(nearest) != simdjson::SUCCESS) return false;
    const std::optional<std::uint32_t> bits =
        RoundTo<kFormat>(nearest, absl::string_view(token.data(), token.size()));
    if (!bits.has_value()) return false;
    const auto stored = static_cast<Bits>(*bits);
    std::memcpy(out, &stored, sizeof(stored));
    return true;
  }
};

struct Double {
  static constexpr std::size_t kBytes = sizeof(double);
  static constexpr absl::string_view kWanted = "a finite FP64 number";

  static bool Read(od::value value, std::byte* out) {
    double number = 0;
    if (value.get(number) != simdjson::SUCCESS) return false;
    std::memcpy(out, &number, sizeof(number));
    return true;
  }
};

template <typename Int>
struct Integer {
  static constexpr std::size_t kBytes = sizeof(Int);
  static constexpr absl::string_view kWanted =
      sizeof(Int) == 8        ? "an integer from -9223372036854775808 to 9223372036854775807"
      : std::is_signed_v<Int> ? "an integer from -128 to 127"
                              : "an integer from 0 to 255";

  static bool Read(od::value value, std::byte* out) {
    std::int64_t number = 0;
    if (value.get(number) != simdjson::SUCCESS) return false;
    const auto stored = static_cast<Int>(number);
    if (stored != number) return false;
    std::memcpy(out, &stored, sizeof(stored));
    return true;
  }
};

// Reads levels of arrays, one for each of `dims`.
template <typename Element>
class LevelReader {
 public:
  LevelReader(JsonReader& reader, const JsonField& field, absl::Span<const std::int64_t> dims,
              std::byte* next)
      : reader_(reader), field_(field), dims_(dims), next_(next) {}

  absl::Status Read(od::value value, std::size_t level) {
    od::array array;
    if (value.get(array) != simdjson::SUCCESS) {
      return reader_.Refuse({.name = PlaceOf(level)}, value, "an array");
    }
    const bool innermost = level + 1 == dims_.size();
    const std::int64_t wanted = dims_[level];
    std::int64_t& index = indexes_[level];
    index = 0;
    for (simdjson::simdjson_result<od::value> item : array) {
      if (item.error() != simdjson::SUCCESS) return reader_.Malformed(field_);
      if (index == wanted) return WrongCount(level, absl::StrCat("more than ", wanted));
      if (innermost) {
        if (!Element::Read(item.value_unsafe(), next_)) {
          return reader_.Refuse({.name = PlaceOf(level + 1)}, item.value_unsafe(),
                                Element::kWanted);
        }
        next_ += Element::kBytes;
      } else if (absl::Status status = Read(item.value_unsafe(), level + 1); !status.ok()) {
        return status;
      }
      ++index;
    }
    return index == wanted ? absl::OkStatus() : WrongCount(level, absl::StrCat(index));
  }

 private:
  // "inputs[0].data[1][2]"
  std::string PlaceOf(std::size_t levels) const {
    std::string place = field_.ToString();
    for (std::size_t i = 0; i < levels; ++i) absl::StrAppend(&place, "[", indexes_[i], "]");
    return place;
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
