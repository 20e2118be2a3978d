#include "wire/json_reader.h"

#include <new>

#include "absl/strings/match.h"
#include "base/printable.h"
#include "wire/json_number.h"

namespace normd {
namespace {

namespace od = simdjson::ondemand;

constexpr int kMaxDepth = 100;         // Values that mean nothing here are no deeper.
constexpr std::size_t kMaxShown = 32;  // Bytes of a text that an error repeats.

// simdjson looks for the processor's instructions at its first use, and ends the process if it has
// no memory then: so that is before any request.
[[maybe_unused]] const bool kIsReady = simdjson::validate_utf8("", 0);

bool IsScalar(absl::string_view token) {
  return token == "true" || token == "false" || token == "null" || IsJsonNumber(token);
}

// The text with zeros behind it, if something else is there; else empty.
std::string CopyOf(absl::string_view text) {
  std::string copy;
  if (text.empty() || text.data()[text.size()] == '\0') return copy;
  copy.reserve(text.size() + simdjson::SIMDJSON_PADDING);
  copy.assign(text.data(), text.size());
  copy.resize(text.size() + simdjson::SIMDJSON_PADDING);
  return copy;
}

}  // namespace

bool IsJsonNumber(absl::string_view token) {
  return !token.empty() && ScanJsonNumber(token.data()).text.size() == token.size();
}

absl::string_view JsonToken(od::value value) {
  const std::string_view token = value.raw_json_token();
  return absl::string_view(token.data(), token.find_last_not_of(" \t\r\n") + 1);
}

JsonReader::JsonReader(absl::string_view text)
    : copy_(CopyOf(text)),
      text_(copy_.empty() ? text : absl::string_view(copy_.data(), text.size())) {}

absl::Status JsonReader::Malformed(const JsonField& field, const char* at) {
  const std::string name = field.ToString();
  std::string error = absl::StrCat("request: malformed JSON", name.empty() ? "" : " in ", name);
  if (at != nullptr || document_.current_location().get(at) == simdjson::SUCCESS) {
    absl::StrAppend(&error, " near byte ", at - text_.data());
  }
  return absl::InvalidArgumentError(error);
}

absl::Status JsonReader::Refuse(const JsonField& field, absl::string_view token,
                                absl::string_view wanted) {
  if (token.empty() || absl::StrContains(",:]}", token.substr(0, 1))) {
    return Malformed(field, token.data());  // No value begins so.
  }
  const std::string got = token.front() == '"'   ? "text"
                          : token.front() == '[' ? "an array"
                          : token.front() == '{' ? "an object"
                                                 : Printable(token, kMaxShown);
  return absl::InvalidArgumentError(absl::StrCat(field.ToString(), ": ", got, ", wanted ", wanted));
}

absl::string_view JsonReader::TokenAt(const char* at) const {
  const absl::string_view rest = text_.substr(static_cast<std::size_t>(at - text_.data()));
  return rest.substr(0, rest.find_first_of(",]}"));
}

std::size_t JsonReader::BytesFrom(od::value value) const {
  return static_cast<std::size_t>(text_.data() + text_.size() - value.raw_json_token().data());
}

bool JsonReader::HoldsArray(od::value array) const {
  const std::string_view from(array.raw_json_token().data(), BytesFrom(array));
  const std::size_t first = from.find_first_not_of(" \t\r\n", 1);
  return first != from.npos && from[first] == '[';
}

absl::Status JsonReader::ReadText(OnField on_field) {
  const simdjson::error_code error =
      parser_.iterate(text_.data(), text_.size(), text_.size() + simdjson::SIMDJSON_PADDING)
          .get(document_);
  const auto broken_at_end = [this] {
    return Malformed({}, text_.data() + text_.find_last_not_of(" \t\r\n"));
  };
  switch (error) {
    case simdjson::SUCCESS: break;
    case simdjson::UNCLOSED_STRING: return broken_at_end();
    case simdjson::MEMALLOC: throw std::bad_alloc();
    case simdjson::EMPTY: return absl::InvalidArgumentError("request: empty, wanted a JSON object");
    case simdjson::UTF8_ERROR:
      return absl::InvalidArgumentError("request: malformed JSON (not UTF-8)");
    default: return absl::InvalidArgumentError("request: malformed JSON");
  }
  od::object object;
  switch (document_.get_object().get(object)) {
    case simdjson::SUCCESS: break;
    case simdjson::INCORRECT_TYPE:
      return absl::InvalidArgumentError("request: not a JSON object, wanted one");
    default: return broken_at_end();  // It does not end with its object.
  }
  if (absl::Status status = ReadFields({}, object, on_field); !status.ok()) return status;
  // What is beyond the object's end has a location.
  const char* at = nullptr;
  if (document_.current_location().get(at) == simdjson::OUT_OF_BOUNDS) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("request: more than one JSON object, byte ", at - text_.data(), " follows it"));
}

absl::Status JsonReader::ReadFields(const JsonField& field, od::object& object, OnField on_field) {
  for (simdjson::simdjson_result<od::field> item : object) {
    if (item.error() != simdjson::SUCCESS) return Malformed(field);
    od::field& entry = item.value_unsafe();
    const absl::StatusOr<absl::string_view> key = Unescape(field, entry.key());
    if (!key.ok()) return key.status();
    if (absl::Status status = on_field(*key, entry.value()); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status JsonReader::ReadObject(const JsonField& field, od::value value, OnField on_field) {
  od::object object;
  if (value.get(object) != simdjson::SUCCESS) return Refuse(field, JsonToken(value), "an object");
  return ReadFields(field, object, on_field);
}

absl::Status JsonReader::ReadArray(const JsonField& field, od::value value, OnElement on_element) {
  od::array array;
  if (value.get(array) != simdjson::SUCCESS) return Refuse(field, JsonToken(value), "an array");
  for (simdjson::simdjson_result<od::value> item : array) {
    if (item.error() != simdjson::SUCCESS) return Malformed(field);
    if (absl::Status status = on_element(item.value_unsafe()); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status JsonReader::ReadString(const JsonField& field, od::value value, std::size_t max_bytes,
                                    std::string& text) {
  od::raw_json_string raw;
  if (value.get(raw) != simdjson::SUCCESS) return Refuse(field, JsonToken(value), "text");
  const absl::StatusOr<absl::string_view> unescaped = Unescape(field, raw);
  if (!unescaped.ok()) return unescaped.status();
  if (unescaped->size() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(field.ToString(), ": ", unescaped->size(),
                                                   " bytes, wanted at most ", max_bytes));
  }
  text.assign(unescaped->data(), unescaped->size());
  return absl::OkStatus();
}

absl::Status JsonReader::Drop(const JsonField& field, od::value value, int depth) {
  if (depth == kMaxDepth) {
    return absl::InvalidArgumentError(absl::StrCat(field.ToString(), ": more than ", kMaxDepth,
                                                   " levels, wanted at most ", kMaxDepth));
  }
  const absl::string_view token = JsonToken(value);
  switch (token.empty() ? '\0' : token.front()) {
    case '[':
      return ReadArray(field, value,
                       [&](od::value element) { return Drop(field, element, depth + 1); });
    case '{':
      return ReadObject(field, value, [&](absl::string_view, od::value element) {
        return Drop(field, element, depth + 1);
      });
    case '"': {
      od::raw_json_string raw;
      if (value.get(raw) != simdjson::SUCCESS) return Malformed(field);
      return Unescape(field, raw).status();
    }
    // A scalar that is left alone is skipped.
    default:
      return IsScalar(token) ? absl::OkStatus() : Refuse(field, JsonToken(value), "a JSON value");
  }
}

absl::StatusOr<absl::string_view> JsonReader::Unescape(const JsonField& field,
                                                       od::raw_json_string raw) {
  const char* const begin = raw.raw();
  const char* end = begin;  // The first pass of the parser has seen that there is one.
  bool escaped = false;
  for (; *end != '"'; ++end) {
    if (*end != '\\') continue;
    escaped = true;
    ++end;
  }
  const auto size = static_cast<std::size_t>(end - begin);
  if (!escaped) return absl::string_view(begin, size);
  if (unescaped_.size() < size + simdjson::SIMDJSON_PADDING) {
    unescaped_.resize(size + simdjson::SIMDJSON_PADDING);
  }
  auto* out = reinterpret_cast<std::uint8_t*>(unescaped_.data());
  std::string_view text;
  if (parser_.unescape(raw, out).get(text) != simdjson::SUCCESS) return Malformed(field);
  return absl::string_view(text.data(), text.size());
}

}  // namespace normd
