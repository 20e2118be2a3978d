#include "tests/server/metrics/exposition.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace normd::testing {
namespace {

absl::Status Bad(absl::string_view line, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat(reason, ": ", line));
}

std::string TakeName(absl::string_view& rest) {
  std::size_t length = 0;
  while (length < rest.size() && (absl::ascii_isalnum(rest[length]) || rest[length] == '_')) {
    ++length;
  }
  std::string name(rest.substr(0, length));
  rest.remove_prefix(length);
  return name;
}

// A quoted value with its escapes undone; nullopt when it does not end or has another escape.
std::optional<std::string> TakeQuoted(absl::string_view& rest) {
  if (!absl::ConsumePrefix(&rest, "\"")) return std::nullopt;
  std::string value;
  while (!rest.empty()) {
    const char c = rest.front();
    rest.remove_prefix(1);
    if (c == '"') return value;
    if (c != '\\') {
      value += c;
      continue;
    }
    if (rest.empty()) return std::nullopt;
    const char escaped = rest.front();
    rest.remove_prefix(1);
    if (escaped != '\\' && escaped != '"' && escaped != 'n') return std::nullopt;
    value += escaped == 'n' ? '\n' : escaped;
  }
  return std::nullopt;
}

// The family of a sample: its own name, or without a histogram's suffix.
bool HasFamily(const Exposition& out, absl::string_view name) {
  if (out.type.count(std::string(name)) != 0) return true;
  for (const absl::string_view suffix : {"_bucket", "_sum", "_count"}) {
    absl::string_view family = name;
    if (!absl::ConsumeSuffix(&family, suffix)) continue;
    const auto type = out.type.find(std::string(family));
    if (type == out.type.end()) continue;
    if (type->second == "histogram" || (type->second == "summary" && suffix != "_bucket")) {
      return true;
    }
  }
  return false;
}

absl::Status ParseSample(absl::string_view line, Exposition& out) {
  absl::string_view rest = line;
  const std::string name = TakeName(rest);
  if (name.empty() || !HasFamily(out, name)) return Bad(line, "no family");
  Labels labels;
  if (absl::ConsumePrefix(&rest, "{")) {
    while (!absl::ConsumePrefix(&rest, "}")) {
      if (!labels.empty() && !absl::ConsumePrefix(&rest, ",")) return Bad(line, "no comma");
      std::string label = TakeName(rest);
      if (label.empty() || !absl::ConsumePrefix(&rest, "=")) return Bad(line, "bad label");
      std::optional<std::string> value = TakeQuoted(rest);
      if (!value) return Bad(line, "bad label value");
      if (!labels.emplace(std::move(label), *std::move(value)).second) {
        return Bad(line, "label twice");
      }
    }
  }
  double value = 0;
  if (!absl::ConsumePrefix(&rest, " ") || !absl::SimpleAtod(rest, &value)) {
    return Bad(line, "bad value");
  }
  if (!out.samples.emplace(std::make_pair(name, labels), value).second) {
    return Bad(line, "series twice");
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<double> Exposition::Value(const std::string& name, const Labels& labels) const {
  const auto found = samples.find({name, labels});
  if (found == samples.end()) return std::nullopt;
  return found->second;
}

int Exposition::Count(const std::string& name) const {
  int count = 0;
  for (const auto& [series, value] : samples) count += series.first == name ? 1 : 0;
  return count;
}

absl::StatusOr<Exposition> ParseExposition(absl::string_view text) {
  if (!text.empty() && text.back() != '\n') return Bad("", "no newline at the end");
  Exposition out;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    absl::string_view rest = line;
    const bool help = absl::ConsumePrefix(&rest, "# HELP ");
    if (help || absl::ConsumePrefix(&rest, "# TYPE ")) {
      const std::string name = TakeName(rest);
      if (name.empty() || !absl::ConsumePrefix(&rest, " ")) return Bad(line, "bad comment");
      if (!(help ? out.help : out.type).emplace(name, std::string(rest)).second) {
        return Bad(line, "family twice");
      }
      continue;
    }
    if (absl::Status status = ParseSample(line, out); !status.ok()) return status;
  }
  return out;
}

}  // namespace normd::testing
