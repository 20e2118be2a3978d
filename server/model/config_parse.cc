// Parsing, with errors that show where the text is wrong and nothing of the text itself: the file
// may be one that was never meant for a client's eyes. protobuf's own messages quote it, so only
// what they say about the schema is taken over.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "server/model/config.h"

namespace normd {
namespace {

using MessageDescriptor = google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

// No name of the schema is as long as this, nor any that resembles one.
constexpr std::size_t kMaxNameBytes = 64;

// What people who come from PyTorch or another framework write for a field of ours.
constexpr std::pair<absl::string_view, absl::string_view> kOtherNames[] = {
    {"num_groups", "groups"},
    {"num_channels", "channels"},
    {"num_features", "channels"},
    {"elementwise_affine", "affine"},
    {"epsilon", "eps"},
    {"variance_epsilon", "eps"},
    {"rms_norm_eps", "eps"},
    {"layer_norm_eps", "eps"},
    {"hidden_size", "normalized_shape"},
    {"dim", "normalized_shape"},
    {"track_running_stats", "use_running_stats"},
    {"negative_slope", "leaky_slope"},
    {"data_format", "layout"},
    {"memory_format", "layout"},
    {"dtype", "dtypes"},
    {"prefix", "parameter_prefix"}};
// PyTorch's arguments that have no counterpart.
constexpr std::pair<absl::string_view, absl::string_view> kNoNames[] = {
    {"momentum", "inference does not use it: leave it out"},
    {"device", "the server's --device says where models are computed: leave it out"},
    {"bias", "a norm has the weight and the bias that its file has: leave it out"},
    {"track_running_stats", "running statistics are always used here: leave it out"}};

// More than `most` counts as `most` + 1, and costs less.
std::size_t EditDistance(absl::string_view a, absl::string_view b, std::size_t most) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    std::size_t fewest = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
      fewest = std::min(fewest, row[j]);
    }
    // The rows that follow have no fewer.
    if (fewest > most) return most + 1;
  }
  return std::min(row.back(), most + 1);
}

// "GroupNorm" is "group_norm" to whoever writes it.
std::string Folded(absl::string_view name) {
  std::string folded;
  for (const char c : name) {
    if (c != '_') folded += absl::ascii_tolower(c);
  }
  return folded;
}

// The one of `names` that `name` was probably meant to be: two edits away at most, fewer for a
// short one.
std::optional<std::string> Nearest(absl::string_view name, const std::vector<std::string>& names) {
  if (name.size() > kMaxNameBytes) return std::nullopt;
  const std::string folded = Folded(name);
  std::optional<std::string> nearest;
  std::size_t fewest = std::min<std::size_t>(2, folded.size() / 3) + 1;
  for (const std::string& candidate : names) {
    const std::string other = Folded(candidate);
    // No fewer edits than the lengths differ by.
    if (other.size() >= folded.size() + fewest || folded.size() >= other.size() + fewest) continue;
    const std::size_t edits = EditDistance(folded, other, fewest - 1);
    if (edits < fewest) {
      fewest = edits;
      nearest = candidate;
    }
  }
  return nearest;
}

std::vector<std::string> FieldsOf(const MessageDescriptor& message) {
  std::vector<std::string> names;
  for (int i = 0; i < message.field_count(); ++i) names.push_back(message.field(i)->name());
  return names;
}

std::vector<std::string> ValuesOf(const EnumDescriptor& values) {
  std::vector<std::string> names;
  for (int i = 0; i < values.value_count(); ++i) names.push_back(values.value(i)->name());
  return names;
}

// What stands in `text` between `before` and the next `after`.
std::optional<absl::string_view> Between(absl::string_view text, absl::string_view before,
                                         absl::string_view after) {
  const std::size_t begin = text.find(before);
  if (begin == absl::string_view::npos) return std::nullopt;
  text.remove_prefix(begin + before.size());
  const std::size_t end = text.find(after);
  if (end == absl::string_view::npos) return std::nullopt;
  return text.substr(0, end);
}

// The message that a field with this name belongs to, when there is one.
const MessageDescriptor* OwnerOf(absl::string_view field) {
  const MessageDescriptor& config = *v1::ModelConfig::descriptor();
  const std::string name(field);
  if (config.FindFieldByName(name) != nullptr) return &config;
  for (int i = 0; i < config.field_count(); ++i) {
    const MessageDescriptor* const inner = config.field(i)->message_type();
    if (inner != nullptr && inner->FindFieldByName(name) != nullptr) return inner;
  }
  return nullptr;
}

// Where in a config the fields of `owner`, which OwnerOf gave, stand.
std::string PlaceOf(const MessageDescriptor& owner) {
  const MessageDescriptor& config = *v1::ModelConfig::descriptor();
  if (&owner == &config) return "beside the operation, not inside";
  for (int i = 0; i < config.field_count(); ++i) {
    const FieldDescriptor& field = *config.field(i);
    if (field.message_type() == &owner && field.containing_oneof() == nullptr) {
      return absl::StrCat("inside ", field.name());
    }
  }
  return "inside the operation";
}

std::string UnknownField(const MessageDescriptor& message, absl::string_view name) {
  const std::vector<std::string> fields = FieldsOf(message);
  const auto did_you_mean = [name](absl::string_view field) {
    return absl::StrCat("unknown field \"", name, "\", did you mean \"", field, "\"?");
  };
  for (const auto& [other, field] : kOtherNames) {
    if (name == other && message.FindFieldByName(std::string(field)) != nullptr) {
      return did_you_mean(field);
    }
  }
  for (const auto& [other, advice] : kNoNames) {
    if (name == other) return absl::StrCat("unknown field \"", name, "\": ", advice);
  }
  if (const auto nearest = Nearest(name, fields)) return did_you_mean(*nearest);
  if (const MessageDescriptor* const owner = OwnerOf(name); owner != nullptr) {
    return absl::StrCat("unknown field \"", name, "\": it belongs ", PlaceOf(*owner));
  }
  return absl::StrCat("unknown field, wanted one of ", absl::StrJoin(fields, ", "));
}

const FieldDescriptor* KnownField(absl::string_view name) {
  const MessageDescriptor* const owner = OwnerOf(name);
  return owner == nullptr ? nullptr : owner->FindFieldByName(std::string(name));
}

std::string UnknownValue(const FieldDescriptor& field, absl::string_view value) {
  const std::vector<std::string> values = ValuesOf(*field.enum_type());
  const auto nearest = Nearest(value, values);
  return absl::StrCat(field.name(), ": unknown value, wanted one of ", absl::StrJoin(values, ", "),
                      nearest ? absl::StrCat(", probably ", *nearest) : "");
}

// One of protobuf's messages in our words. Whatever it quotes of the text is used only where it is
// a name of the schema.
std::string InOurWords(absl::string_view message) {
  if (const auto name = Between(message, "has no field named \"", "\"")) {
    const std::string type(Between(message, "Message type \"", "\"").value_or(""));
    const MessageDescriptor* const found =
        v1::ModelConfig::descriptor()->file()->pool()->FindMessageTypeByName(type);
    if (found != nullptr) return UnknownField(*found, *name);
  }
  for (const absl::string_view before : {"for field \"", "Non-repeated field \"",
                                         "Invalid value for boolean field \"", "Field \""}) {
    const FieldDescriptor* const field = KnownField(Between(message, before, "\"").value_or(""));
    if (field == nullptr) continue;
    if (absl::StartsWith(message, "Unknown enumeration value") && field->enum_type() != nullptr) {
      return UnknownValue(*field, Between(message, "value of \"", "\"").value_or(""));
    }
    if (absl::StartsWith(message, "Non-repeated")) return absl::StrCat(field->name(), ": twice");
    if (absl::StartsWith(message, "Invalid value")) {
      return absl::StrCat(field->name(), ": wanted true or false");
    }
    if (absl::StrContains(message, "another member of oneof")) {
      const bool operation = field->containing_type() == v1::ModelConfig::descriptor();
      return absl::StrCat(field->name(), ": a second ", operation ? "operation" : "choice",
                          ", wanted one");
    }
  }
  constexpr std::pair<absl::string_view, absl::string_view> kWords[] = {
      {"Expected integer or identifier", "wanted the name of a value"},
      {"Expected integer", "wanted an integer"},
      {"Integer out of range", "the integer is out of range"},
      {"Expected double", "wanted a number"},
      {"Expected string", "wanted a string in quotes"},
      {"Expected identifier", "wanted the name of a field"},
      {"Expected \"{\"", "wanted {"},
      {"Expected \":\"", "wanted a colon"},
      {"Message is too deep", "nested too deeply"},
      {"String literals cannot cross", "a string does not end on its line"},
      {"Invalid escape sequence", "an unknown escape in a string"}};
  for (const auto& [theirs, ours] : kWords) {
    if (absl::StartsWith(message, theirs)) return std::string(ours);
  }
  return "not protobuf text format";
}

// Keeps the first few errors: one broken line can cause many.
class ErrorList final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    constexpr int kMaxErrors = 4;
    if (++count_ > kMaxErrors) return;
    if (count_ > 1) text_ += "; ";
    // A negative line: the error concerns the whole input.
    if (line >= 0) absl::StrAppend(&text_, "line ", line + 1, ", column ", column + 1, ": ");
    text_ += InOurWords(message);
  }
  const std::string& text() const { return text_; }

 private:
  int count_ = 0;
  std::string text_;
};

}  // namespace

absl::StatusOr<v1::ModelConfig> ParseModelConfig(absl::string_view text) {
  ErrorList errors;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.SetRecursionLimit(8);
  v1::ModelConfig config;
  if (!parser.ParseFromString(std::string(text), &config)) {
    return absl::InvalidArgumentError(errors.text());
  }
  // Protobuf 3.21 serializes an entry whose key or value the text leaves out with a wrong length,
  // until somebody has looked the map up.
  static_cast<void>(config.parameter_names());
  return config;
}

}  // namespace normd
