#include "flags/flag_set.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/nearest_name.h"
#include "flags/byte_size.h"

namespace normd {
namespace {

// Breaks `text` at spaces, so that it fits between `left` and the right margin.
std::string Wrap(absl::string_view text, std::size_t left) {
  constexpr std::size_t kRight = 100;
  std::string wrapped;
  std::size_t column = left;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column > left && column + 1 + word.size() > kRight) {
      absl::StrAppend(&wrapped, "\n", std::string(left, ' '));
      column = left;
    } else if (column > left) {
      wrapped += ' ';
      ++column;
    }
    absl::StrAppend(&wrapped, word);
    column += word.size();
  }
  return wrapped;
}

}  // namespace

const FlagSet::Flag* FlagSet::Find(absl::string_view name) const {
  std::string underscored(name);
  std::replace(underscored.begin(), underscored.end(), '-', '_');
  const auto it = std::find_if(flags_.begin(), flags_.end(),
                               [&](const Flag& f) { return f.name == underscored; });
  return it == flags_.end() ? nullptr : &*it;
}

std::string FlagSet::Suggestion(absl::string_view name) const {
  std::vector<std::string> names;
  for (const Flag& flag : flags_) names.push_back(flag.name);
  const std::string nearest = NearestName(name, names);
  return nearest.empty() ? "" : absl::StrCat("; did you mean --", nearest, "?");
}

std::string FlagSet::Wanted(const Flag& flag) {
  return absl::StrCat(flag.placeholder, flag.kind.empty() ? "" : ", ", flag.kind);
}

absl::StatusOr<std::vector<std::string>> FlagSet::Parse(
    absl::Span<const std::string> arguments) const {
  std::vector<std::string> others;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view text = arguments[i];
    if (text == "--") {
      others.insert(others.end(), arguments.begin() + i + 1, arguments.end());
      break;
    }
    if (text.size() < 2 || text.front() != '-') {
      others.emplace_back(text);
      continue;
    }
    if (!absl::ConsumePrefix(&text, "--")) absl::ConsumePrefix(&text, "-");
    const std::size_t equals = text.find('=');
    const absl::string_view name = text.substr(0, equals);
    std::optional<absl::string_view> value;
    if (equals != absl::string_view::npos) value = text.substr(equals + 1);

    const Flag* flag = Find(name);
    absl::string_view positive = name;
    if (flag == nullptr && !value && absl::ConsumePrefix(&positive, "no")) {
      flag = Find(positive);
      if (flag != nullptr && !flag->is_bool) flag = nullptr;
      value = "false";
    }
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag ", arguments[i], Suggestion(name)));
    }
    if (!value && flag->is_bool) value = "true";
    if (!value) {
      if (++i == arguments.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--", flag->name, ": wants a value, ", Wanted(*flag)));
      }
      value = arguments[i];
    }
    if (absl::Status status = Read(*flag, *value); !status.ok()) return status;
  }
  return others;
}

absl::Status FlagSet::Read(const Flag& flag, absl::string_view text) {
  std::string error;
  if (flag.parse(text, &error)) return absl::OkStatus();
  return Wrong(flag.name, absl::StrCat("\"", text, "\""),
               absl::StrCat(Wanted(flag), error.empty() ? "" : ": ", error));
}

void FlagSet::AddBytes(std::string name, std::int64_t* value, std::int64_t default_value,
                       std::string help, FlagCheck<std::int64_t> check) {
  Add(std::move(name), value, default_value, "BYTES", std::move(help), std::move(check));
  Flag& flag = flags_.back();
  flag.kind = "a whole number, alone or with a unit, such as 64MiB or 1GB";
  flag.default_value = FormatByteSize(default_value);
  flag.parse = [value](absl::string_view text, std::string*) {
    const std::optional<std::int64_t> bytes = ParseByteSize(text);
    if (bytes.has_value()) *value = *bytes;
    return bytes.has_value();
  };
}

void FlagSet::SetDefaults() const {
  for (const Flag& flag : flags_) flag.set_default();
}

absl::Status FlagSet::Check() const {
  for (const Flag& flag : flags_) {
    if (absl::Status status = flag.check(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status FlagSet::Invalid(absl::string_view name, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", what));
}

absl::Status FlagSet::Wrong(absl::string_view name, absl::string_view got,
                            absl::string_view wanted) {
  return Invalid(name, absl::StrCat(got, ", wanted ", wanted));
}

std::string FlagSet::Help() const {
  constexpr std::size_t kColumn = 30;
  std::string help;
  absl::string_view section;
  for (const Flag& flag : flags_) {
    if (flag.section != section) {
      section = flag.section;
      absl::StrAppend(&help, help.empty() ? "" : "\n", section, section.empty() ? "" : "\n");
    }
    std::string left = absl::StrCat(flag.name.size() == 1 ? "  -" : "  --", flag.name,
                                    flag.is_bool ? "" : absl::StrCat("=", flag.placeholder));
    if (left.size() >= kColumn) {
      left.append("\n").append(kColumn, ' ');
    } else {
      left.append(kColumn - left.size(), ' ');
    }
    std::string text = flag.help;
    if (!flag.is_bool && !flag.default_value.empty()) {
      absl::StrAppend(&text, " (", flag.default_value, ")");
    }
    absl::StrAppend(&help, left, Wrap(text, kColumn), "\n");
  }
  return help;
}

}  // namespace normd
