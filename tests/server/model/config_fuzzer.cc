// Models' configs and names, held against protobuf's own parser. What a refusal says of a text that
// does not begin with a field of the schema must not depend on words that resemble no name of it,
// so nothing else of such a text can be quoted.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/text_format.h"
#include "server/model/config.h"
#include "server/model/model_name.h"
#include "server/text_format/parse_text.h"
#include "tests/fuzz/expect.h"

namespace normd::testing {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::TextFormat;

constexpr std::size_t kMaxMessageBytes = 2000;

class NoErrors final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string&) override {}
};

// What protobuf's own parser takes, with the bound on nesting.
bool ProtobufParses(absl::string_view text) {
  NoErrors errors;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.SetRecursionLimit(8);
  v1::ModelConfig config;
  return parser.ParseFromString(std::string(text), &config);
}

std::string Folded(absl::string_view name) {
  std::string folded = absl::AsciiStrToLower(name);
  folded.erase(std::remove(folded.begin(), folded.end(), '_'), folded.end());
  return folded;
}

void AddNames(const Descriptor& message, std::set<std::string>& names) {
  names.insert(message.name());
  for (int i = 0; i < message.field_count(); ++i) {
    const auto& field = *message.field(i);
    if (!names.insert(Folded(field.name())).second) continue;
    if (field.message_type() != nullptr) AddNames(*field.message_type(), names);
    for (int k = 0; field.enum_type() != nullptr && k < field.enum_type()->value_count(); ++k) {
      names.insert(Folded(field.enum_type()->value(k)->name()));
    }
  }
}

// The schema's names, and those of other frameworks that an error may repeat, without underscores
// and in lower case.
const std::set<std::string>& KnownNames() {
  static const auto* const names = [] {
    auto* known = new std::set<std::string>(absl::StrSplit(
        "numgroups numchannels numfeatures elementwiseaffine epsilon varianceepsilon "
        "rmsnormeps layernormeps hiddensize dim trackrunningstats negativeslope "
        "dataformat memoryformat dtype prefix momentum device bias "
        // Triton's fields.
        "name platform backend maxbatchsize input output instancegroup dynamicbatching "
        "optimization parameters modelwarmup sequencebatching defaultmodelfilename "
        "ensemblescheduling modeltransactionpolicy "
        // Values of booleans and of numbers.
        "true t false f inf infinity nan",
        ' '));
    AddNames(*v1::ModelConfig::descriptor(), *known);
    return known;
  }();
  return *names;
}

// At most `most` insertions, removals, changes and swaps of neighbours lie between the two.
bool IsWithin(absl::string_view a, absl::string_view b, std::size_t most) {
  if (a.size() > b.size() + most || b.size() > a.size() + most) return false;
  while (!a.empty() && !b.empty() && a.front() == b.front()) {
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  if (a.size() + b.size() == 0) return true;
  if (most == 0) return false;
  if (a.size() > 1 && b.size() > 1 && a[0] == b[1] && a[1] == b[0] &&
      IsWithin(a.substr(2), b.substr(2), most - 1)) {
    return true;
  }
  return (!a.empty() && IsWithin(a.substr(1), b, most - 1)) ||
         (!b.empty() && IsWithin(a, b.substr(1), most - 1)) ||
         (!a.empty() && !b.empty() && IsWithin(a.substr(1), b.substr(1), most - 1));
}

// Remembered, since most words come again and again.
bool ResemblesAName(absl::string_view word) {
  constexpr std::size_t kMostWords = 100'000;
  static auto* const known = new std::unordered_map<std::string, bool>;
  const std::string folded = Folded(word);
  if (const auto found = known->find(folded); found != known->end()) return found->second;
  const bool resembles =
      std::any_of(KnownNames().begin(), KnownNames().end(),
                  [&](const std::string& name) { return IsWithin(folded, name, 2); });
  if (known->size() >= kMostWords) known->clear();
  known->emplace(folded, resembles);
  return resembles;
}

// `text` with other letters in each word that resembles no name.
std::string WithOtherWords(absl::string_view text) {
  const auto is_letter = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  std::string other(text);
  for (std::size_t begin = 0; begin < other.size();) {
    if (!is_letter(other[begin])) {
      ++begin;
      continue;
    }
    std::size_t end = begin;
    while (end < other.size() && is_letter(other[end])) ++end;
    const absl::string_view word = text.substr(begin, end - begin);
    // Numbers have a grammar of their own, to the end of an exponent.
    const bool in_number =
        absl::ascii_isdigit(static_cast<unsigned char>(word.front())) ||
        (begin > 0 && (text[begin - 1] == '.' || text[begin - 1] == '+')) ||
        (begin > 1 && text[begin - 1] == '-' && absl::ascii_tolower(text[begin - 2]) == 'e');
    if (!in_number && !ResemblesAName(word)) other.replace(begin, word.size(), word.size(), 'q');
    begin = end;
  }
  return other;
}

// Whether the first word is a field's name.
bool BeginsAsAConfig(absl::string_view text) {
  for (;;) {
    text = absl::StripLeadingAsciiWhitespace(text);
    if (!absl::StartsWith(text, "#")) break;
    text.remove_prefix(std::min(text.find('\n'), text.size()));
  }
  const auto end = std::find_if_not(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
  });
  return v1::ModelConfig::descriptor()->FindFieldByName(std::string(text.begin(), end)) != nullptr;
}

void ExpectShortQuotes(absl::string_view text, absl::string_view message) {
  for (const absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \t\n\r"))) {
    if (word.size() <= 2 * kMaxQuotedBytes) continue;
    Expect(!absl::StrContains(message, word), "an error quotes briefly", message);
  }
}

// Maps in the order of their keys, so that equal configs have equal bytes.
std::string BytesOf(const v1::ModelConfig& config) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    config.SerializeToCodedStream(&coded);
  }
  return bytes;
}

void TryConfig(absl::string_view text) {
  const absl::StatusOr<v1::ModelConfig> config = ParseModelConfig(text);
  Expect(config.ok() == ProtobufParses(text), "protobuf takes the same", text);
  if (!config.ok()) {
    ExpectMessage(config.status().message(), kMaxMessageBytes);
    Expect(absl::StartsWith(config.status().message(), "line "), "an error has its line", text);
    ExpectShortQuotes(text, config.status().message());
    // Escapes within strings are no words.
    if (absl::StrContains(text, "\\") || BeginsAsAConfig(text)) return;
    const std::string other = WithOtherWords(text);
    Expect(ParseModelConfig(other).status() == config.status(), "an error quotes nothing but names",
           config.status().message());
    return;
  }
  std::string printed;
  Expect(TextFormat::PrintToString(*config, &printed), "a config can be printed");
  const absl::StatusOr<v1::ModelConfig> again = ParseModelConfig(printed);
  Expect(again.ok() && BytesOf(*again) == BytesOf(*config), "a config survives being printed",
         printed);
  const absl::Status checked = CheckModelConfig(*config);
  if (!checked.ok()) ExpectMessage(checked.message(), kMaxMessageBytes);
}

void TryName(absl::string_view name) {
  const absl::Status status = CheckModelName(name);
  if (!status.ok()) return ExpectMessage(status.message(), 400);
  Expect(!absl::StrContains(name, "/") && !absl::StartsWith(name, ".") && !name.empty(),
         "a name is no path", name);
}

}  // namespace
}  // namespace normd::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Protobuf logs each text that is not UTF-8.
  static const google::protobuf::LogSilencer silencer;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  normd::testing::TryConfig(text);
  normd::testing::TryName(text);
  return 0;
}
