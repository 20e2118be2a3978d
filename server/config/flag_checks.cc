#include "server/config/flag_checks.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace normd {

FlagCheck<std::int64_t> From(std::int64_t low, std::int64_t high) {
  return [low, high](std::int64_t value) -> std::string {
    if (value >= low && value <= high) return "";
    if (high == kUnbounded) return absl::StrCat("at least ", low);
    return absl::StrCat("from ", low, " to ", high);
  };
}

FlagCheck<absl::Duration> UpTo(absl::Duration high) {
  return [high](absl::Duration value) -> std::string {
    if (value >= absl::ZeroDuration() && value <= high) return "";
    return absl::StrCat("from 0 to ", absl::FormatDuration(high));
  };
}

FlagCheck<absl::Duration> From1MsTo(absl::Duration high) {
  return [high](absl::Duration value) -> std::string {
    if (value >= absl::Milliseconds(1) && value <= high) return "";
    return absl::StrCat("from 1ms to ", absl::FormatDuration(high));
  };
}

FlagCheck<absl::Duration> BeOffOrFrom10MsTo(absl::Duration high) {
  return [high](absl::Duration value) -> std::string {
    const bool is_off = value == absl::ZeroDuration();
    if (is_off || (value >= absl::Milliseconds(10) && value <= high)) return "";
    return absl::StrCat("0, or from 10ms to ", absl::FormatDuration(high));
  };
}

std::string BeAShare(double value) { return value > 0 && value <= 1 ? "" : "above 0, at most 1"; }

std::string BeFolders(const std::string& value) {
  if (value.empty()) return "a folder";
  std::vector<std::string> folders = absl::StrSplit(value, ',');
  std::sort(folders.begin(), folders.end());
  if (folders.front().empty()) return "folders separated by commas, none of them empty";
  const bool twice = std::adjacent_find(folders.begin(), folders.end()) != folders.end();
  return twice ? "each folder once" : "";
}

std::string BeAnAddress(const std::string& value) {
  const std::size_t colon = value.rfind(':');
  int port = -1;
  const bool is_address = colon != std::string::npos && colon != 0 &&
                          absl::SimpleAtoi(value.substr(colon + 1), &port) && port >= 0 &&
                          port <= 65535;
  return is_address ? "" : "host:port, such as 127.0.0.1:8001";
}

std::string BeALogLevel(const std::string& value) {
  for (const absl::string_view known : {"trace", "debug", "info", "warning", "error", "off"}) {
    if (value == known) return "";
  }
  return "trace, debug, info, warning, error or off";
}

std::string BeAListenAddress(const std::string& value) {
  if (absl::StartsWith(value, "unix:/") && value.back() != '/') return "";
  return BeAnAddress(value).empty() && !absl::StartsWith(value, "unix:")
             ? ""
             : "host:port, such as 127.0.0.1:8001, or unix:///path";
}

std::string BeListenAddresses(const std::string& value) {
  for (const absl::string_view address : absl::StrSplit(value, ',')) {
    const std::string wanted = BeAListenAddress(std::string(address));
    if (!wanted.empty()) return absl::StrCat(wanted, ", or several with commas between");
  }
  return "";
}

std::string BeOnOffOrAuto(const std::string& value) {
  return value == "on" || value == "off" || value == "auto" ? "" : "auto, on or off";
}

std::string BeAnAddressOrNone(const std::string& value) {
  return value.empty() ? "" : BeAnAddress(value);
}

FlagCheck<std::string> BeOneOf(std::vector<std::string> known) {
  return [known = std::move(known)](const std::string& value) -> std::string {
    if (std::find(known.begin(), known.end(), value) != known.end()) return "";
    return absl::StrCat(absl::StrJoin(known.begin(), known.end() - 1, ", "), " or ", known.back());
  };
}

}  // namespace normd
