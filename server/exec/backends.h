// All backends of this build.

#ifndef NORMD_SERVER_EXEC_BACKENDS_H_
#define NORMD_SERVER_EXEC_BACKENDS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/exec/backend.h"

namespace normd::norm::cpu {
class Executor;
}  // namespace normd::norm::cpu

namespace normd {

// The value of --device.
struct DeviceSpec {
  enum class Kind { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;
  std::vector<int> ordinals;  // For kCuda; empty: every device.
};

// "auto", "cpu", "cuda" or "cuda:0,1". InvalidArgument for anything else, and for an ordinal that
// is named twice.
absl::StatusOr<DeviceSpec> ParseDevice(absl::string_view text);

// InvalidArgument for a device that cannot be parsed, FailedPrecondition for one that is named but
// absent or not supported by this build. "auto" takes every CUDA device, and without one the CPU,
// which it logs in one line. `metrics` and `clock` outlive the backend.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const BackendOptions& options,
                                                       Metrics& metrics, const Clock& clock);

// Keeps a model's host parameters and, for a fused layer, the packed weight.
std::unique_ptr<Backend> CreateCpuBackend(const BackendOptions& options, Metrics& metrics,
                                          const Clock& clock);
// The model's CpuProgram. `kernels` outlives it. ResourceExhausted when it does not fit.
absl::StatusOr<std::unique_ptr<BackendState>> MakeCpuProgram(const Model& model,
                                                             const norm::cpu::Executor& kernels);

// Uses the CUDA devices of `ordinals`; empty: every device. FailedPrecondition, with the reason, if
// this build has no CUDA backend, or the machine no driver, no device, or not the named one. The
// build selects the source that implements it.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(const std::vector<int>& ordinals,
                                                           const BackendOptions& options,
                                                           Metrics& metrics, const Clock& clock);

}  // namespace normd

#endif  // NORMD_SERVER_EXEC_BACKENDS_H_
