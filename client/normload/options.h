// The options of normload's command line.

#ifndef NORMD_CLIENT_NORMLOAD_OPTIONS_H_
#define NORMD_CLIENT_NORMLOAD_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/connection_flags.h"
#include "client/load/objective.h"
#include "client/load/rate_profile.h"
#include "client/load/rate_search.h"
#include "client/load/workload.h"
#include "client/normload/server_flags.h"
#include "client/request.h"
#include "client/scrape/http_get.h"

namespace normd::load {

// The report's files beside the terminal; empty: none.
struct ReportFiles {
  std::string json;
  std::string csv;
  std::string html;
};

struct ProgramOptions {
  std::string server = "127.0.0.1:8001";
  std::string protocol_text = "normd";
  std::string http = "127.0.0.1:8000";  // With --protocol=http.
  client::ConnectionFlags connection;
  BalanceFlags balance;
  PlaneFlags plane_flags;

  // When to send.
  int concurrency = 16;
  double rate = 0;  // Requests per second; 0: closed loop.
  std::string arrival = "poisson";
  std::string profile_text;
  std::string arrivals_file;
  int max_inflight = 16384;
  int connections = 0;  // 0: as --help says.

  // What to send.
  std::string model;
  std::string shape_text;
  std::optional<Shape> shape;  // Nullopt: one that suits the model.
  std::string dtype_text = "float32";
  norm::DType dtype = norm::DType::kFloat32;
  bool stream = false;
  std::int64_t chunk_bytes = kDefaultChunkBytes;
  std::string mix_text;
  std::int64_t version = 0;
  std::uint64_t seed = 1;
  absl::Duration timeout = absl::Seconds(10);  // A call's deadline.
  int max_sending = 32;                        // Calls on one connection; 0: no limit.
  double cancel_share = 0;
  absl::Duration cancel_after = absl::Milliseconds(1);

  // When to stop.
  absl::Duration duration = absl::Seconds(10);
  std::int64_t requests = 0;
  absl::Duration warmup = absl::Seconds(1);
  std::int64_t give_up_after = 1000;
  double stable_p99 = 0;
  absl::Duration stable_window = absl::Seconds(2);
  double stop_error_share = 1;

  // Several runs.
  std::string sweep_text;
  bool find_max = false;

  // The report.
  bool verify = false;
  std::int64_t verify_every = 10;
  std::string model_repository;
  ReportFiles files;
  std::string metrics;
  bool quiet = false;
  double max_error_share = 0;
  std::string slo;
  bool require_slo = false;

  bool help = false;

  // ParseOptions makes these from the above, and what stands beside its text.
  client::Protocol protocol = client::Protocol::kNormd;
  Plane plane = Plane::kGrpc;
  std::optional<client::FleetOptions> fleet;  // Set: the servers are balanced.
  std::vector<MixEntry> mix;
  std::optional<RateProfile> profile;  // From --rate and --profile.
  std::vector<Duration> trace;         // From --arrivals_file.
  std::optional<Objective> objective;
  std::optional<client::HttpUrl> metrics_url;
  client::HttpSecurity metrics_security;
  std::optional<Sweep> sweep;
  // Whether reports list each entry of the mix: if there are several, or a stream.
  bool tells_of_entries() const { return mix.size() > 1 || (!mix.empty() && mix[0].streamed()); }
  bool over_http() const { return protocol_text == "http"; }
  bool open_loop() const {
    return profile.has_value() || !trace.empty() || find_max || (sweep && sweep->over_rate);
  }
};

// InvalidArgument names the flag, what came and what was wanted. With --help nothing else is
// checked.
absl::StatusOr<ProgramOptions> ParseOptions(absl::Span<const std::string> arguments);

// "normload merge": the reports to merge, at least one, and the result's files.
struct MergeOptions {
  std::vector<std::string> reports;
  ReportFiles files;
};

absl::StatusOr<MergeOptions> ParseMergeOptions(absl::Span<const std::string> arguments);

// The text of --help.
std::string HelpText();

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_OPTIONS_H_
