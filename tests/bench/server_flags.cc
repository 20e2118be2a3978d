#include "tests/bench/server_flags.h"

#include <string>

#include "absl/flags/flag.h"
#include "absl/time/time.h"

ABSL_FLAG(std::string, device, "cpu", "as normd's flag");
ABSL_FLAG(int, cpu_threads, 0, "threads of the CPU lane; 0: one for each core");
ABSL_FLAG(int, cpu_lanes, 0, "as normd's flag");
ABSL_FLAG(std::int64_t, max_staged_bytes, normd::BackendOptions().max_staged_bytes,
          "largest request staged by the thread that receives it, on a GPU; 0: none");
ABSL_FLAG(std::int64_t, min_staged_bytes, normd::BackendOptions().min_staged_bytes,
          "requests of no more are not staged");
ABSL_FLAG(std::int64_t, mapped_bytes, normd::BackendOptions().device_mapped_bytes,
          "largest batch computed through the link of a GPU");
ABSL_FLAG(int, device_lanes, normd::BackendOptions().device_lanes, "as normd's flag");
ABSL_FLAG(std::int64_t, staging_bytes, 0, "as normd's --device_staging_bytes");
ABSL_FLAG(int, small_lanes, -1, "of them compute small batches at once; 0: all, -1: as normd");
ABSL_FLAG(absl::Duration, spin_wait, absl::InfiniteDuration(),
          "as normd's --device_spin_wait; infinite: its default");
ABSL_FLAG(std::int64_t, max_batch_bytes, -1, "as normd's flag; -1: its default");
ABSL_FLAG(std::int64_t, max_inline_bytes, -1, "as normd's flag; -1: its default");

namespace normd {

BenchServerOptions OptionsFromFlags() {
  BenchServerOptions options;
  options.backend.device = absl::GetFlag(FLAGS_device);
  options.backend.cpu_lanes = absl::GetFlag(FLAGS_cpu_lanes);
  options.backend.cpu_threads = absl::GetFlag(FLAGS_cpu_threads);
  options.backend.max_staged_bytes = absl::GetFlag(FLAGS_max_staged_bytes);
  options.backend.min_staged_bytes = absl::GetFlag(FLAGS_min_staged_bytes);
  options.backend.device_mapped_bytes = absl::GetFlag(FLAGS_mapped_bytes);
  options.backend.device_lanes = absl::GetFlag(FLAGS_device_lanes);
  options.backend.device_staging_bytes = absl::GetFlag(FLAGS_staging_bytes);
  const DeviceDefaults defaults(options.backend.device);
  options.queue.limits.max_bytes =
      FlagOr(absl::GetFlag(FLAGS_max_batch_bytes), defaults.max_batch_bytes);
  options.queue.max_inline_bytes =
      FlagOr(absl::GetFlag(FLAGS_max_inline_bytes), defaults.max_inline_bytes);
  options.backend.max_inline_bytes = options.queue.max_inline_bytes;
  options.small_lanes = absl::GetFlag(FLAGS_small_lanes) < 0 ? defaults.small_lanes
                                                             : absl::GetFlag(FLAGS_small_lanes);
  const absl::Duration spin_wait = absl::GetFlag(FLAGS_spin_wait);
  options.queue.spin_wait = spin_wait == absl::InfiniteDuration()
                                ? defaults.spin_wait
                                : Duration(absl::ToChronoNanoseconds(spin_wait));
  return options;
}

}  // namespace normd
