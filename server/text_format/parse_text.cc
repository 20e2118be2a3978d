#include "server/text_format/parse_text.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/nearest_name.h"
#include "base/printable.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace normd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::io::Tokenizer;

// No name of a schema is as long as this, nor any that resembles one.
constexpr std::size_t kMaxNameBytes = 64;

std::string JoinWithOr(const std::vector<std::string>& names) {
  if (names.size() < 2) return absl::StrJoin(names, "");
  return absl::StrCat(absl::StrJoin(names.begin(), names.end() - 1, ", "), " or ", names.back());
}

// What protobuf says of a text is not used: it names the token after a wrong one, and quotes.
class NoErrors final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, google::protobuf::io::ColumnNumber, const std::string&) override {}
};

// Follows the parser of protobuf 3.21 through the text, up to the first error.
class TextReader final : private google::protobuf::io::ErrorCollector {
 public:
  TextReader(const TextSchema& schema, absl::string_view text)
      : schema_(schema),
        input_(text.data(), static_cast<int>(text.size())),
        tokenizer_(&input_, this) {
    tokenizer_.set_allow_f_after_float(true);
    tokenizer_.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
    Next();
  }

  std::string FindError() {
    if (ReadFields(*schema_.root, "", "") && lexical_error_.empty()) return "not in text format";
    // Tokens that cannot be read come before what they would mean.
    return lexical_error_.empty() ? error_ : lexical_error_;
  }

 private:
  void AddError(int line, int column, const std::string& message) override {
    if (!lexical_error_.empty()) return;
    const auto has = [&message](absl::string_view word) {
      return absl::StrContains(message, word);
    };
    absl::string_view what = "what is no text, wanted protobuf text format";
    if (has("umber") || has("exponent") || has("decimal") || has("hex digits")) {
      what = "a number that cannot be read, wanted one such as 12 or 1e-5, with a space behind it";
    } else if (has("escape")) {
      what = "an unknown escape, wanted those of C";
    } else if (has("tring")) {
      what = "a string without its end, wanted quotes before the line's end";
    }
    lexical_error_ = absl::StrCat(Place(line, column), Label(), what);
  }

  static std::string Place(int line, int column) {
    return absl::StrCat("line ", line + 1, ", column ", column + 1, ": ");
  }
  std::string Label() const { return path_.empty() ? "" : absl::StrCat(path_, ": "); }

  const Tokenizer::Token& token() { return tokenizer_.current(); }
  void Next() { tokenizer_.Next(); }
  bool Take(absl::string_view symbol) {
    if (token().text != symbol) return false;
    Next();
    return true;
  }

  std::string Came(absl::string_view text) {
    if (token().type == Tokenizer::TYPE_END) return "the end of the file";
    return is_of_schema_ ? Printable(text, kMaxQuotedBytes) : "something else";
  }
  bool Fail(const Tokenizer::Token& at, absl::string_view came, absl::string_view wanted) {
    error_ = absl::StrCat(Place(at.line, at.column), Label(), came, ", wanted ", wanted);
    return false;
  }
  bool Fail(absl::string_view wanted) { return Fail(token(), Came(token().text), wanted); }

  // Up to `end`; an empty one is that of the text.
  bool ReadFields(const Descriptor& message, const std::string& path, absl::string_view end) {
    std::map<const void*, int> seen;  // Fields and oneofs.
    while (end.empty() ? token().type != Tokenizer::TYPE_END : token().text != end) {
      path_ = path;
      if (!ReadField(message, path, end, seen)) return false;
    }
    if (!end.empty()) Next();
    return true;
  }

  bool ReadField(const Descriptor& message, const std::string& path, absl::string_view end,
                 std::map<const void*, int>& seen) {
    const Tokenizer::Token name = token();
    if (name.type != Tokenizer::TYPE_IDENTIFIER) {
      return FailNoName(name, absl::StrCat("the name of a field", end.empty() ? "" : " or ", end));
    }
    const FieldDescriptor* const field = message.FindFieldByName(name.text);
    if (field == nullptr) return FailUnknown(message, name);
    is_of_schema_ = true;
    path_ = absl::StrCat(path, path.empty() ? "" : ".", field->name());
    int& count = seen[field];
    if (!field->is_repeated() && ++count > 1) return Fail(name, "a second one", "one");
    if (const auto* oneof = field->real_containing_oneof(); oneof != nullptr) {
      const bool operation = oneof->containing_type() == schema_.root;
      if (++seen[oneof] > 1) {
        return Fail(name, absl::StrCat("a second ", operation ? oneof->name() : "choice"), "one");
      }
    }
    Next();
    const bool is_message = field->message_type() != nullptr;
    if (!Take(":") && !is_message) return Fail("a colon");
    const std::string field_path = path_;
    if (field->is_repeated() && Take("[")) {
      for (bool first = true; !Take("]"); first = false) {
        if (!first && !Take(",")) return Fail("a comma or ]");
        if (!ReadValue(*field, absl::StrCat(field_path, "[", count++, "]"))) return false;
        path_ = field_path;
      }
    } else if (!ReadValue(*field, field->is_repeated() ? absl::StrCat(field_path, "[", count++, "]")
                                                       : field_path)) {
      return false;
    }
    if (!Take(";")) Take(",");
    return lexical_error_.empty();
  }

  // Where the name of a field should stand.
  bool FailNoName(const Tokenizer::Token& came, absl::string_view wanted) {
    if (came.type == Tokenizer::TYPE_END && !open_.empty()) {
      return Fail(
          open_.back(), absl::StrCat("a ", open_.back().text, " that is not closed"),
          absl::StrCat(open_.back().text == "{" ? "}" : ">", " before the end of the file"));
    }
    if (open_.empty() && (came.text == "}" || came.text == ">")) {
      return Fail(came, absl::StrCat("a ", came.text, " that closes nothing"), wanted);
    }
    if (!is_of_schema_ && (came.text == "{" || came.text == "[")) {
      return Fail(came, "JSON", "protobuf text format, such as name { other_name: 1 }");
    }
    if (came.type == Tokenizer::TYPE_STRING && is_of_schema_) {
      return Fail(came, "a name in quotes, as in JSON", absl::StrCat(wanted, ", without quotes"));
    }
    return Fail(wanted);
  }

  bool FailUnknown(const Descriptor& message, const Tokenizer::Token& name) {
    std::string advice;
    if (schema_.field_advice != nullptr && name.text.size() <= kMaxNameBytes) {
      advice = schema_.field_advice(message, name.text);
    }
    std::vector<std::string> fields;
    for (int i = 0; i < message.field_count(); ++i) {
      const FieldDescriptor& field = *message.field(i);
      fields.push_back(field.name());
    }
    const std::string nearest = advice.empty() ? NearestName(name.text, fields) : "";
    if (!nearest.empty()) advice = absl::StrCat("did you mean \"", nearest, "\"?");
    const bool may_quote = is_of_schema_ || !advice.empty();
    error_ = absl::StrCat(
        Place(name.line, name.column), Label(), "unknown field",
        may_quote ? absl::StrCat(" \"", Printable(name.text, kMaxQuotedBytes), "\"") : "",
        ", wanted one of ", absl::StrJoin(fields, ", "), advice.empty() ? "" : "; ", advice);
    return false;
  }

  bool ReadValue(const FieldDescriptor& field, const std::string& path) {
    path_ = path;
    if (const Descriptor* const message = field.message_type(); message != nullptr) {
      const Tokenizer::Token open = token();
      if (!Take("{") && !Take("<")) return Fail("{");
      open_.push_back(open);
      if (!ReadFields(*message, path, open.text == "{" ? "}" : ">")) return false;
      open_.pop_back();
      return true;
    }
    Tokenizer::Token value = token();
    const bool negative = Take("-");
    if (negative) value.text += token().text;
    if (const std::string wanted = Wanted(field, token(), negative); !wanted.empty()) {
      return Fail(value, Came(value.text), wanted);
    }
    Next();
    while (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING &&
           token().type == Tokenizer::TYPE_STRING) {
      Next();  // Strings behind one another are one.
    }
    return true;
  }

  // Empty when `value`, with a minus before it or not, may stand in the field.
  std::string Wanted(const FieldDescriptor& field, const Tokenizer::Token& value,
                     bool negative) const {
    const bool is_name = value.type == Tokenizer::TYPE_IDENTIFIER;
    const bool is_integer = value.type == Tokenizer::TYPE_INTEGER;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_ENUM: return WantedValue(field, value, negative);
      case FieldDescriptor::CPPTYPE_BOOL: {
        constexpr absl::string_view kNames[] = {"true", "True", "t", "false", "False", "f"};
        const bool known = (is_name && std::find(std::begin(kNames), std::end(kNames),
                                                 value.text) != std::end(kNames)) ||
                           (is_integer && Fits(value.text, 1));
        return known && !negative ? "" : "true or false";
      }
      case FieldDescriptor::CPPTYPE_STRING:
        return value.type == Tokenizer::TYPE_STRING && !negative ? "" : "a string in quotes";
      case FieldDescriptor::CPPTYPE_DOUBLE:
      case FieldDescriptor::CPPTYPE_FLOAT: {
        const std::string name = absl::AsciiStrToLower(value.text);
        const bool known = value.type == Tokenizer::TYPE_FLOAT ||
                           (is_name && (name == "inf" || name == "infinity" || name == "nan")) ||
                           (is_integer && !IsHexOrOctal(value.text));
        return known ? "" : "a number";
      }
      default: {  // int64, the only one left that our schemas have.
        if (!is_integer) return "an integer";
        const auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
        return Fits(value.text, most + (negative ? 1 : 0)) ? "" : "from -2^63 to 2^63 - 1";
      }
    }
  }

  std::string WantedValue(const FieldDescriptor& field, const Tokenizer::Token& value,
                          bool negative) const {
    const EnumDescriptor& values = *field.enum_type();
    if (value.type == Tokenizer::TYPE_IDENTIFIER && !negative &&
        values.FindValueByName(value.text) != nullptr) {
      return "";
    }
    const auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
    if (value.type == Tokenizer::TYPE_INTEGER && Fits(value.text, most + (negative ? 1 : 0))) {
      return "";
    }
    std::string wanted = schema_.possible != nullptr ? schema_.possible(field) : "";
    if (wanted.empty()) wanted = ListValues(values);
    std::string text = value.text;
    if (value.type == Tokenizer::TYPE_STRING) {
      Tokenizer::ParseString(value.text, &text);
      absl::StrAppend(&wanted, " without quotes");
    }
    std::string advice;
    if (schema_.value_advice != nullptr && text.size() <= kMaxNameBytes) {
      advice = schema_.value_advice(field, text);
    }
    return absl::StrCat(wanted, advice.empty() ? "" : "; ", advice);
  }

  static bool Fits(const std::string& text, std::uint64_t most) {
    std::uint64_t value = 0;
    return Tokenizer::ParseInteger(text, most, &value);
  }
  static bool IsHexOrOctal(absl::string_view text) { return text.size() > 1 && text[0] == '0'; }

  const TextSchema& schema_;
  std::string path_;  // The current field's.
  std::string error_;
  std::string lexical_error_;
  bool is_of_schema_ = false;           // A field of the schema has been read.
  std::vector<Tokenizer::Token> open_;  // Braces around what is being read.
  google::protobuf::io::ArrayInputStream input_;
  Tokenizer tokenizer_;  // Last: its errors come here.
};

// Takes `["KEY"]` or `[INDEX]` from the front of `rest`: the index of the entry, or -1.
int TakeIndex(const google::protobuf::Message& parsed, const FieldDescriptor& field,
              absl::string_view& rest) {
  if (!absl::ConsumePrefix(&rest, "[")) return -1;
  const std::size_t end = rest.find("]: ");
  const absl::string_view index = rest.substr(0, std::min(end, rest.find(']')));
  int number = -1;
  if (absl::SimpleAtoi(index, &number)) {
    rest.remove_prefix(index.size() + 1);
    return number;
  }
  if (!field.is_map() || end == absl::string_view::npos) return -1;
  const absl::string_view key = rest.substr(0, end);
  const auto* const reflection = parsed.GetReflection();
  for (int i = 0; i < reflection->FieldSize(parsed, &field); ++i) {
    const auto& entry = reflection->GetRepeatedMessage(parsed, &field, i);
    const auto* const name = entry.GetDescriptor()->map_key();
    const std::string text = entry.GetReflection()->GetString(entry, name);
    if (key == absl::StrCat("\"", Printable(text, kMaxQuotedBytes), "\"")) number = i;
  }
  return number;
}

}  // namespace

absl::Status ParseText(const TextSchema& schema, absl::string_view text,
                       google::protobuf::Message& parsed,
                       google::protobuf::TextFormat::ParseInfoTree* places) {
  constexpr int kMaxDepth = 8;
  NoErrors ignored;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&ignored);
  parser.SetRecursionLimit(kMaxDepth);
  if (places != nullptr) parser.WriteLocationsTo(places);
  if (parser.ParseFromString(std::string(text), &parsed)) return absl::OkStatus();
  return absl::InvalidArgumentError(TextReader(schema, text).FindError());
}

std::string PlaceInText(const google::protobuf::Message& parsed,
                        const google::protobuf::TextFormat::ParseInfoTree& places,
                        absl::string_view error) {
  std::string place;
  const google::protobuf::Message* message = &parsed;
  const google::protobuf::TextFormat::ParseInfoTree* tree = &places;
  while (tree != nullptr) {
    std::size_t end = 0;
    while (end < error.size() &&
           (absl::ascii_isalnum(static_cast<unsigned char>(error[end])) || error[end] == '_')) {
      ++end;
    }
    const FieldDescriptor* const field =
        message->GetDescriptor()->FindFieldByName(std::string(error.substr(0, end)));
    if (field == nullptr) break;
    error.remove_prefix(end);
    const int given = TakeIndex(*message, *field, error);
    const int index = field->is_repeated() ? std::max(given, 0) : -1;
    const auto location = tree->GetLocation(field, index);
    if (location.line < 0) break;
    place = absl::StrCat("line ", location.line + 1, ", column ", location.column + 1, ": ");
    if (field->message_type() == nullptr || field->is_map()) break;
    const auto* const reflection = message->GetReflection();
    message = field->is_repeated() ? &reflection->GetRepeatedMessage(*message, field, index)
                                   : &reflection->GetMessage(*message, field);
    tree = tree->GetTreeForNested(field, index);
    if (!absl::ConsumePrefix(&error, ".")) break;
  }
  return place;
}

std::string ListValues(const EnumDescriptor& values) {
  std::vector<std::string> names;
  for (int i = 0; i < values.value_count(); ++i) {
    const std::string& name = values.value(i)->name();
    if (!absl::EndsWith(name, "UNSPECIFIED")) names.push_back(name);
  }
  return JoinWithOr(names);
}

}  // namespace normd
