// A command line's flags, set into variables of the program. There are no globals, so a program
// with subcommands has a set for each, and a test can run it many times. A flag is declared in one
// place. Values are parsed as absl::flags does, whose own flags are globals; CLI11's would need as
// much code for times, checks and suggestions.

#ifndef NORMD_FLAGS_FLAG_SET_H_
#define NORMD_FLAGS_FLAG_SET_H_

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/flags/marshalling.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace normd {

// Checks a value: empty if it is valid, else what was wanted, such as "1 or more".
template <typename T>
using FlagCheck = std::function<std::string(const T& value)>;

// Not thread-safe. Borrows the variables that it sets.
class FlagSet {
 public:
  struct Flag {
    std::string section;
    std::string name;
    std::string placeholder;
    std::string kind;  // What the placeholder stands for; may be empty.
    std::string help;
    std::string default_value;
    bool is_bool;
    // Sets the variable. Returns false, with the reason, if the text is no such value.
    std::function<bool(absl::string_view, std::string*)> parse;
    std::function<void()> set_default;
    std::function<absl::Status()> check;
  };

  // T: bool, an integer, double, std::string, absl::Duration, or a vector of strings, to which each
  // occurrence of the flag adds one. `placeholder` names the value or its unit ("MODEL", "N"); a
  // bool needs none. `help` is a sentence.
  template <typename T>
  void Add(std::string name, T* value, std::type_identity_t<T> default_value,
           std::string placeholder, std::string help,
           FlagCheck<std::type_identity_t<T>> check = {}) {
    Flag flag;
    flag.section = section_;
    flag.name = std::move(name);
    flag.is_bool = std::is_same_v<T, bool>;
    flag.placeholder = flag.is_bool ? "true or false" : std::move(placeholder);
    flag.kind = KindOf<T>();
    flag.help = std::move(help);
    flag.default_value = Text(default_value);
    flag.parse = [value](absl::string_view text, std::string* error) {
      return Parse(text, value, error);
    };
    flag.check = [value, check = std::move(check), name = flag.name]() {
      const std::string wanted = check ? check(*value) : "";
      return wanted.empty() ? absl::OkStatus() : Wrong(name, Got(*value), wanted);
    };
    flag.set_default = [value, default_value = std::move(default_value)] {
      *value = default_value;
    };
    flags_.push_back(std::move(flag));
  }
  // The same with the variable's own value as the default.
  template <typename T>
  void Add(std::string name, T* value, std::string placeholder, std::string help,
           FlagCheck<std::type_identity_t<T>> check = {}) {
    Add(std::move(name), value, *value, std::move(placeholder), std::move(help), std::move(check));
  }
  // Adds a text of which Check makes `made`: `parse` takes the text and returns an absl::StatusOr
  // of what `made` is set to, whose error does not name the flag. An empty text makes nothing.
  template <typename T, typename Parser>
  void AddParsed(std::string name, std::string* text, T* made, std::string placeholder,
                 std::string help, Parser parse) {
    Add(name, text, std::move(placeholder), std::move(help));
    flags_.back().check = [name, text, made, parse] {
      if (text->empty()) return absl::OkStatus();
      auto parsed = parse(*text);
      if (parsed.ok()) *made = *std::move(parsed);
      return parsed.ok() ? absl::OkStatus() : Invalid(name, parsed.status().message());
    };
  }
  // Adds a number of bytes, which may be given with a unit: see ParseByteSize.
  void AddBytes(std::string name, std::int64_t* value, std::int64_t default_value, std::string help,
                FlagCheck<std::int64_t> check = {});
  // Flags that are added from now on stand under this title in the help.
  void Section(std::string title) { section_ = std::move(title); }

  void SetDefaults() const;

  // Sets the variables and returns the other arguments in order. Takes --name=value, --name value,
  // --flag and --noflag for bools, the same with one dash, and -- before arguments that begin with
  // a dash. A name's underscores may be dashes. InvalidArgument names the flag, what came and what
  // was wanted; for an unknown flag it suggests a similar name. Does not check the values.
  absl::StatusOr<std::vector<std::string>> Parse(absl::Span<const std::string> arguments) const;

  // InvalidArgument names the first flag whose value fails its check: "--name: got, wanted ...".
  absl::Status Check() const;

  // Each flag, indented by two columns, with its default, in lines of up to 100 columns.
  std::string Help() const;

  // For programs that word their own errors.
  const std::vector<Flag>& flags() const { return flags_; }
  const Flag* Find(absl::string_view name) const;  // Null if there is none.
  // "; did you mean --name?", or nothing.
  std::string Suggestion(absl::string_view name) const;
  // Sets the flag's variable. InvalidArgument: "--name: "got", wanted ...".
  static absl::Status Read(const Flag& flag, absl::string_view text);
  // The form of its value: "N, a whole number".
  static std::string Wanted(const Flag& flag);

  // "--name: what".
  static absl::Status Invalid(absl::string_view name, absl::string_view what);
  // "--name: got, wanted ...".
  static absl::Status Wrong(absl::string_view name, absl::string_view got,
                            absl::string_view wanted);

 private:
  using Strings = std::vector<std::string>;

  template <typename T>
  static std::string KindOf() {
    if constexpr (std::is_same_v<T, absl::Duration>) {
      return "a time with its unit, such as 10s or 500ms";
    } else if constexpr (std::is_floating_point_v<T>) {
      return "a number";
    } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      return "a whole number";
    } else {
      return "";
    }
  }

  // absl::UnparseFlag has a deprecated namesake for durations.
  template <typename T>
  static std::string Text(const T& value) {
    if constexpr (std::is_same_v<T, absl::Duration>) {
      return absl::FormatDuration(value);
    } else {
      return absl::UnparseFlag(value);
    }
  }
  // The value as errors show it.
  template <typename T>
  static std::string Got(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      return value.empty() ? "empty" : "\"" + value + "\"";
    } else {
      return Text(value);
    }
  }

  template <typename T>
  static bool Parse(absl::string_view text, T* value, std::string* error) {
    if constexpr (std::is_same_v<T, Strings>) {
      value->emplace_back(text);
      return true;
    } else {
      return absl::ParseFlag(text, value, error);
    }
  }

  std::string section_;
  std::vector<Flag> flags_;
};

}  // namespace normd

#endif  // NORMD_FLAGS_FLAG_SET_H_
