// A command line's flags, as values of the program that asks for them: no globals, so that a
// program with subcommands has a set for each, and a test can run it many times. Values are parsed
// as absl::flags does.

#ifndef NORMD_CLIENT_FLAGS_FLAGS_H_
#define NORMD_CLIENT_FLAGS_FLAGS_H_

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/flags/marshalling.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace normd::client {

// Not thread-safe. Borrows the variables that it sets.
class FlagSet {
 public:
  // `*value` is the default. T: bool, an integer, double, std::string, absl::Duration. `help` is a
  // sentence; `placeholder` names the value in it ("MODEL"); a bool needs none.
  template <typename T>
  void Add(std::string name, T* value, std::string placeholder, std::string help) {
    constexpr bool kIsBool = std::is_same_v<T, bool>;
    if (kIsBool) placeholder = "true or false";
    flags_.push_back({section_, std::move(name), std::move(placeholder), KindOf<T>(),
                      std::move(help), Unparse(*value), kIsBool,
                      [value](absl::string_view text, std::string* error) {
                        return absl::ParseFlag(text, value, error);
                      }});
  }
  // The flags that are added from now on stand under this title in the help.
  void Section(std::string title) { section_ = std::move(title); }

  // Sets the variables and returns the other arguments in order. Takes --name=value, --name value,
  // --flag and --noflag for bools, the same with one dash, and -- before arguments that begin with
  // a dash. A name's underscores may be dashes. InvalidArgument names the flag, what came and what
  // was wanted; of an unknown flag the one with nearly its name.
  absl::StatusOr<std::vector<std::string>> Parse(absl::Span<const std::string> arguments) const;

  // Each flag, indented by two columns, with its default, in lines of up to 100 columns.
  std::string Help() const;

 private:
  struct Flag {
    std::string section;
    std::string name;
    std::string placeholder;
    std::string kind;  // What the placeholder stands for; may be empty.
    std::string help;
    std::string default_value;
    bool is_bool;
    std::function<bool(absl::string_view, std::string*)> parse;
  };

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
  static std::string Unparse(const T& value) {
    if constexpr (std::is_same_v<T, absl::Duration>) {
      return absl::FormatDuration(value);
    } else {
      return absl::UnparseFlag(value);
    }
  }

  const Flag* Find(absl::string_view name) const;
  static std::string Wanted(const Flag& flag);
  // "; did you mean --name?", or nothing.
  std::string Suggestion(absl::string_view name) const;

  std::string section_;
  std::vector<Flag> flags_;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_FLAGS_FLAGS_H_
