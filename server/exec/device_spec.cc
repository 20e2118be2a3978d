#include "server/exec/device_spec.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/printable.h"

namespace normd {

absl::StatusOr<DeviceSpec> ParseDevice(absl::string_view text) {
  const auto error = [text](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("device: \"", Printable(text, 64), "\": ", what,
                                                   "wanted auto, cpu, cuda or cuda:0,1"));
  };
  DeviceSpec spec;
  if (text == "auto") return spec;
  spec.kind = DeviceSpec::Kind::kCpu;
  if (text == "cpu") return spec;
  spec.kind = DeviceSpec::Kind::kCuda;
  if (text == "cuda") return spec;
  if (!absl::ConsumePrefix(&text, "cuda:")) return error("");
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int ordinal = 0;
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    if (!digits || !absl::SimpleAtoi(part, &ordinal)) return error("an ordinal is no number; ");
    if (std::find(spec.ordinals.begin(), spec.ordinals.end(), ordinal) != spec.ordinals.end()) {
      return error(absl::StrCat("device ", ordinal, " is named twice; "));
    }
    spec.ordinals.push_back(ordinal);
  }
  return spec;
}

}  // namespace normd
