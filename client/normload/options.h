// normload's command line.

#ifndef NORMD_CLIENT_NORMLOAD_OPTIONS_H_
#define NORMD_CLIENT_NORMLOAD_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/load/workload.h"

namespace normd::load {

struct ProgramOptions {
  std::string server = "127.0.0.1:8001";

  // When to send.
  int concurrency = 16;
  double rate = 0;  // Requests per second; 0: closed loop.
  std::string arrival = "poisson";
  int max_inflight = 16384;
  int connections = 0;  // 0: one for each caller, at most 16; 16 in an open loop.

  // What to send.
  std::string model;
  std::string shape = "1x64x56x56";
  std::string dtype = "float32";
  std::string mix_text;
  std::int64_t version = 0;
  std::uint64_t seed = 1;
  absl::Duration timeout = absl::Seconds(10);  // A call's deadline.

  // When to stop.
  absl::Duration duration = absl::Seconds(10);
  std::int64_t requests = 0;
  absl::Duration warmup = absl::Seconds(1);
  std::int64_t give_up_after = 1000;

  // What is told.
  bool verify = false;
  std::int64_t verify_every = 10;
  std::string model_repository;
  std::string json_path;
  bool quiet = false;
  double max_error_share = 0;

  bool help = false;

  // Made from the above by ParseOptions.
  std::vector<MixEntry> mix;
  bool open_loop() const { return rate > 0; }
};

// InvalidArgument names the flag, what came and what was wanted. With --help nothing else is
// checked.
absl::StatusOr<ProgramOptions> ParseOptions(absl::Span<const std::string> arguments);

std::string HelpText();

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_OPTIONS_H_
