#include "server/exec/backends.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/printable.h"
#include "spdlog/spdlog.h"

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
    if (!digits || !absl::SimpleAtoi(part, &ordinal)) return error("an ordinal is not a number; ");
    if (std::find(spec.ordinals.begin(), spec.ordinals.end(), ordinal) != spec.ordinals.end()) {
      return error(absl::StrCat("device ", ordinal, " is named twice; "));
    }
    spec.ordinals.push_back(ordinal);
  }
  return spec;
}

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options,
                                                       Metrics& metrics, const Clock& clock) {
  const absl::StatusOr<DeviceSpec> spec = ParseDevice(options.device);
  if (!spec.ok()) return spec.status();
  if (spec->kind == DeviceSpec::Kind::kCpu) return CreateCpuBackend(options, metrics, clock);
  absl::StatusOr<std::unique_ptr<Backend>> cuda =
      CreateCudaBackend(spec->ordinals, options, metrics, clock);
  if (cuda.ok()) return cuda;
  if (spec->kind == DeviceSpec::Kind::kAuto && absl::IsFailedPrecondition(cuda.status())) {
    spdlog::info("device auto: {}; computing on the CPU", std::string(cuda.status().message()));
    return CreateCpuBackend(options, metrics, clock);
  }
  return absl::Status(cuda.status().code(),
                      absl::StrCat("device \"", options.device, "\": ", cuda.status().message()));
}

}  // namespace normd
