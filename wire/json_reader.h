// What every reader of a JSON text here needs of simdjson: strings, errors that name the field, and
// values that are checked and dropped. Only sources of this folder include it.

#ifndef NORMD_WIRE_JSON_READER_H_
#define NORMD_WIRE_JSON_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "simdjson.h"

namespace normd {

// A field for errors: "inputs[1].data", or a name alone.
struct JsonField {
  absl::string_view list = {};
  std::size_t index = 0;
  absl::string_view name = {};

  JsonField Named(absl::string_view other) const { return {list, index, other}; }
  std::string ToString() const {
    return list.empty() ? std::string(name) : absl::StrCat(list, "[", index, "]", name);
  }
};

// A scalar as it stands in the text, or the bracket that opens another value.
absl::string_view JsonToken(simdjson::ondemand::value value);

// Requires a token of a text.
bool IsJsonNumber(absl::string_view token);

// Walks over one text. Its index, and a copy if there is one, take up to kIndexBytes for each byte
// of the text. May throw std::bad_alloc. Not thread-safe.
class JsonReader {
 public:
  static constexpr std::int64_t kIndexBytes = 5;

  // `text` has SIMDJSON_PADDING readable bytes behind it. Borrowed. simdjson takes the first of
  // them for a part of a text that is cut off: if it is not 0, the text is copied.
  explicit JsonReader(absl::string_view text);

  // The text's object. `on_field` consumes the value of each field or leaves it; `key` is valid
  // until the next string is read. InvalidArgument unless the text is one object.
  using OnField =
      absl::FunctionRef<absl::Status(absl::string_view key, simdjson::ondemand::value value)>;
  absl::Status ReadText(OnField on_field);

  // The elements of an array and the fields of an object. InvalidArgument for other values.
  using OnElement = absl::FunctionRef<absl::Status(simdjson::ondemand::value element)>;
  absl::Status ReadArray(const JsonField& field, simdjson::ondemand::value value,
                         OnElement on_element);
  absl::Status ReadObject(const JsonField& field, simdjson::ondemand::value value,
                          OnField on_field);
  absl::Status ReadFields(const JsonField& field, simdjson::ondemand::object& object,
                          OnField on_field);

  // A string of at most `max_bytes`.
  absl::Status ReadString(const JsonField& field, simdjson::ondemand::value value,
                          std::size_t max_bytes, std::string& text);

  // Any value: checks that it is JSON and drops it.
  absl::Status Drop(const JsonField& field, simdjson::ondemand::value value, int depth = 0);

  // "<field>: <the token, or its kind>, wanted <wanted>"; Malformed for a token that begins no
  // value.
  absl::Status Refuse(const JsonField& field, absl::string_view token, absl::string_view wanted);
  // What begins there, up to a comma or a closing bracket.
  absl::string_view TokenAt(const char* at) const;
  // "request: malformed JSON in <field> near byte <n>", that of `at`, or else where it reads.
  absl::Status Malformed(const JsonField& field, const char* at = nullptr);

  // The bytes of the text from `value` to its end.
  std::size_t BytesFrom(simdjson::ondemand::value value) const;
  // Whether the first element of an array is an array.
  bool HoldsArray(simdjson::ondemand::value array) const;

 private:
  // Valid until the next call.
  absl::StatusOr<absl::string_view> Unescape(const JsonField& field,
                                             simdjson::ondemand::raw_json_string raw);

  const std::string copy_;  // Empty: the text is where it was.
  const absl::string_view text_;
  simdjson::ondemand::parser parser_;
  simdjson::ondemand::document document_;
  std::string unescaped_;
};

}  // namespace normd

#endif  // NORMD_WIRE_JSON_READER_H_
