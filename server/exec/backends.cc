#include "server/exec/backends.h"

#include "absl/strings/str_cat.h"
#include "server/exec/device_spec.h"
#include "spdlog/spdlog.h"

namespace normd {

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
