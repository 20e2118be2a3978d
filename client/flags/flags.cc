#include "client/flags/flags.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace normd::client {

const FlagSet::Flag* FlagSet::Find(absl::string_view name) const {
  std::string underscored(name);
  std::replace(underscored.begin(), underscored.end(), '-', '_');
  const auto it = std::find_if(flags_.begin(), flags_.end(),
                               [&](const Flag& f) { return f.name == underscored; });
  return it == flags_.end() ? nullptr : &*it;
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
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", arguments[i]));
    }
    if (!value && flag->is_bool) value = "true";
    if (!value) {
      if (++i == arguments.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--", flag->name, ": wants a value, ", flag->placeholder));
      }
      value = arguments[i];
    }
    std::string error;
    if (!flag->parse(*value, &error)) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag->name, ": \"", *value,
                                                     "\", wanted ", flag->placeholder,
                                                     error.empty() ? "" : ": ", error));
    }
  }
  return others;
}

std::string FlagSet::Help() const {
  std::string help;
  for (const Flag& flag : flags_) {
    std::string left = absl::StrCat(flag.name.size() == 1 ? "  -" : "  --", flag.name,
                                    flag.is_bool ? "" : absl::StrCat("=", flag.placeholder));
    constexpr std::size_t kColumn = 30;
    left.append(left.size() < kColumn ? kColumn - left.size() : 1, ' ');
    absl::StrAppend(&help, left, flag.help);
    if (!flag.is_bool && !flag.default_value.empty()) {
      absl::StrAppend(&help, " (", flag.default_value, ")");
    }
    absl::StrAppend(&help, "\n");
  }
  return help;
}

}  // namespace normd::client
