#include "wire/message_json.h"

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

namespace normd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

// Whether the message is one oneof of scalars.
bool IsParameter(const Descriptor& type) {
  return type.oneof_decl_count() == 1 && type.oneof_decl(0)->field_count() == type.field_count() &&
         type.field(0)->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
}

// Whether the message is one list of text.
bool IsTextList(const Descriptor& type) {
  return type.field_count() == 1 && type.field(0)->is_repeated() &&
         type.field(0)->type() == FieldDescriptor::TYPE_STRING;
}

Json JsonOf(const Message& message);

// The value of a field, or, with an index, of an element of a list.
Json JsonOf(const Message& message, const FieldDescriptor& field, int i) {
  const Reflection& reflection = *message.GetReflection();
  const auto read = [&](auto get, auto get_repeated) {
    return i < 0 ? (reflection.*get)(message, &field)
                 : (reflection.*get_repeated)(message, &field, i);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return read(&Reflection::GetInt32, &Reflection::GetRepeatedInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return read(&Reflection::GetInt64, &Reflection::GetRepeatedInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return read(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return read(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return read(&Reflection::GetDouble, &Reflection::GetRepeatedDouble);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return read(&Reflection::GetFloat, &Reflection::GetRepeatedFloat);
    case FieldDescriptor::CPPTYPE_BOOL:
      return read(&Reflection::GetBool, &Reflection::GetRepeatedBool);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = read(&Reflection::GetEnumValue, &Reflection::GetRepeatedEnumValue);
      const auto* known = field.enum_type()->FindValueByNumber(number);
      return known == nullptr ? Json(number) : Json(known->name());
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = read(&Reflection::GetString, &Reflection::GetRepeatedString);
      return field.type() == FieldDescriptor::TYPE_BYTES ? absl::Base64Escape(text) : text;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return JsonOf(i < 0 ? reflection.GetMessage(message, &field)
                          : reflection.GetRepeatedMessage(message, &field, i));
  }
  return nullptr;
}

// In the order of its keys.
Json JsonOfMap(const Message& message, const FieldDescriptor& field) {
  const FieldDescriptor& key = *field.message_type()->map_key();
  const FieldDescriptor& mapped = *field.message_type()->map_value();
  const bool is_list =
      mapped.message_type() != nullptr && mapped.message_type()->FindFieldByName("name") != nullptr;
  std::map<std::string, Json> entries;
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field); ++i) {
    const Message& entry = message.GetReflection()->GetRepeatedMessage(message, &field, i);
    const Json name = JsonOf(entry, key, -1);
    entries[name.is_string() ? name.get<std::string>() : name.dump()] = JsonOf(entry, mapped, -1);
  }
  Json json = is_list ? Json::array() : Json::object();
  for (auto& [name, value] : entries) {
    is_list ? json.push_back(std::move(value)) : json.push_back({name, std::move(value)});
  }
  return json;
}

Json JsonOf(const Message& message, const FieldDescriptor& field) {
  if (field.is_map()) return JsonOfMap(message, field);
  if (!field.is_repeated()) return JsonOf(message, field, -1);
  Json json = Json::array();
  for (int i = 0; i < message.GetReflection()->FieldSize(message, &field); ++i) {
    json.push_back(JsonOf(message, field, i));
  }
  return json;
}

Json JsonOf(const Message& message) {
  const Descriptor& type = *message.GetDescriptor();
  const Reflection& reflection = *message.GetReflection();
  if (IsParameter(type)) {
    const FieldDescriptor* set = reflection.GetOneofFieldDescriptor(message, type.oneof_decl(0));
    return set == nullptr ? Json() : JsonOf(message, *set);
  }
  if (IsTextList(type)) return JsonOf(message, *type.field(0));
  Json json = Json::object();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.has_presence() && !reflection.HasField(message, &field)) continue;
    json[field.name()] = JsonOf(message, field);
  }
  return json;
}

// By its name, or, as protobuf also takes it, by that in camel case; null if there is none.
const FieldDescriptor* FieldOf(const Descriptor& type, const std::string& key) {
  const FieldDescriptor* const field = type.FindFieldByName(key);
  return field != nullptr ? field : type.FindFieldByCamelcaseName(key);
}

// Gives an entry of a map the form that protobuf reads; false for a value that fits no member.
bool Unfold(const Descriptor& type, Json& value) {
  if (IsTextList(type)) {
    if (value.is_null()) value = Json::array();
    if (!value.is_array()) value = Json::array({std::move(value)});
    value = Json{{type.field(0)->name(), std::move(value)}};
    return true;
  }
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const bool fits = field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL     ? value.is_boolean()
                      : field.cpp_type() == FieldDescriptor::CPPTYPE_STRING ? value.is_string()
                                                                            : value.is_number();
    if (!fits) continue;
    value = Json{{field.name(), std::move(value)}};
    return true;
  }
  return false;
}

// The value, or its kind, as an error tells it.
std::string Shown(const Json& value) {
  if (value.is_string()) return "text";
  if (value.is_array()) return "an array";
  return value.is_object() ? "an object" : Printable(value.dump(), 32);
}

template <typename Int>
std::string AnInteger() {
  return absl::StrCat("an integer from ", std::numeric_limits<Int>::min(), " to ",
                      std::numeric_limits<Int>::max());
}

std::string WantedBy(const FieldDescriptor& field) {
  if (field.is_map()) return "an object";
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: return AnInteger<std::int32_t>();
    case FieldDescriptor::CPPTYPE_INT64: return AnInteger<std::int64_t>();
    case FieldDescriptor::CPPTYPE_UINT32: return AnInteger<std::uint32_t>();
    case FieldDescriptor::CPPTYPE_UINT64: return AnInteger<std::uint64_t>();
    case FieldDescriptor::CPPTYPE_BOOL: return "true or false";
    default: break;
  }
  if (field.type() == FieldDescriptor::TYPE_BYTES) return "text in base64";
  return field.is_repeated() ? "text, or an array of text" : "text";
}

bool Merge(const Json& json, Message& message) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  return google::protobuf::util::JsonStringToMessage(json.dump(), &message, options).ok();
}

// Why Merge does not take a value: itself, or, of a map, the entry that is wrong.
absl::Status Refusal(const Message& message, const FieldDescriptor& field, const Json& value) {
  const auto refuse = [](absl::string_view name, const Json& got, const FieldDescriptor& wanted) {
    // Text that is not in base64 has the wanted kind.
    const bool quotes = wanted.type() == FieldDescriptor::TYPE_BYTES && got.is_string();
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": ",
        quotes ? absl::StrCat("\"", Printable(got.get<std::string>(), 32), "\"") : Shown(got),
        ", wanted ", WantedBy(wanted)));
  };
  if (!field.is_map() || !value.is_object()) return refuse(field.name(), value, field);
  const Descriptor& mapped = *field.message_type()->map_value()->message_type();
  const std::unique_ptr<Message> alone(message.New());
  for (const auto& [name, entry] : value.items()) {
    if (Merge(Json{{field.name(), Json{{name, entry}}}}, *alone)) continue;
    const auto member = entry.begin();  // See Unfold.
    return refuse(absl::StrCat(field.name(), "[\"", Printable(name, 32), "\"]"), *member,
                  *mapped.FindFieldByName(member.key()));
  }
  return refuse(field.name(), value, field);
}

}  // namespace

std::string WriteMessageJson(const Message& message, absl::string_view field) {
  const Json json =
      field.empty()
          ? JsonOf(message)
          : JsonOf(message, *message.GetDescriptor()->FindFieldByName(std::string(field)));
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::Status ReadMessageJson(absl::string_view text, Message& message, absl::string_view field) {
  constexpr int kMaxLevels = 16;  // No request needs as many; what walks over values recurses.
  bool deep = false;
  Json json = Json::parse(
      text.begin(), text.end(),
      [&deep](int depth, Json::parse_event_t, Json&) { return !(deep |= depth > kMaxLevels); },
      /*allow_exceptions=*/false);
  if (json.is_discarded() || deep || !json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "request: ", deep ? "more than 16 levels" : "malformed", ", wanted a JSON object"));
  }
  if (!field.empty()) json = Json{{std::string(field), std::move(json)}};
  const Descriptor& type = *message.GetDescriptor();
  for (auto& [key, value] : json.items()) {
    const FieldDescriptor* known = FieldOf(type, key);
    if (known == nullptr) continue;
    if (known->is_map() && value.is_object()) {
      const Descriptor* mapped = known->message_type()->map_value()->message_type();
      for (auto& [name, entry] : value.items()) {
        if (Unfold(*mapped, entry)) continue;
        return absl::InvalidArgumentError(absl::StrCat(key, "[\"", Printable(name, 32),
                                                       "\"]: ", Shown(entry),
                                                       ", wanted true, false, an integer or text"));
      }
    } else if (known->type() == FieldDescriptor::TYPE_BYTES && value.is_object()) {
      value = value.value("b64", Json());
    }
  }
  if (Merge(json, message)) return absl::OkStatus();
  for (const auto& [key, value] : json.items()) {
    const FieldDescriptor* const known = FieldOf(type, key);
    const std::unique_ptr<Message> alone(message.New());
    if (known == nullptr || Merge(Json{{key, value}}, *alone)) continue;
    return Refusal(*alone, *known, value);
  }
  return absl::InvalidArgumentError("request: malformed, wanted a JSON object");
}

}  // namespace normd
