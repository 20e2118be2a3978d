#include "server/config/flag_checks.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace normd {

FlagCheck<absl::Duration> BeOffOrFrom10MsTo(absl::Duration high) {
  return [high](absl::Duration value) -> std::string {
    const bool is_off = value == absl::ZeroDuration();
    if (is_off || (value >= absl::Milliseconds(10) && value <= high)) return "";
    return absl::StrCat("0, or from 10ms to ", absl::FormatDuration(high));
  };
}

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

std::string BeAddressesOrNone(const std::string& value) {
  for (const absl::string_view address : absl::StrSplit(value, ',')) {
    const std::string wanted = value.empty() ? "" : BeAnAddress(std::string(address));
    if (!wanted.empty() || absl::StartsWith(address, "unix:")) {
      return "host:port, such as 127.0.0.1:8000, several with commas between, or none";
    }
  }
  return "";
}

std::string BeOriginsOrNone(const std::string& value) {
  if (value.empty() || value == "*") return "";
  for (const absl::string_view origin : absl::StrSplit(value, ',')) {
    const std::size_t scheme = origin.find("://");
    // It is compared with a header, so nothing may follow the port.
    if (scheme == absl::string_view::npos || scheme == 0 || scheme + 3 == origin.size() ||
        origin.find_first_of("/ *\r\n", scheme + 3) != absl::string_view::npos) {
      return "origins such as https://example.com with commas between, *, or none";
    }
  }
  return "";
}

std::string BeAnAddressOrNone(const std::string& value) {
  return value.empty() ? "" : BeAnAddress(value);
}

}  // namespace normd
