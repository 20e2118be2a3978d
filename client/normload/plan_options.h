// The command line of "normload plan".

#ifndef NORMD_CLIENT_NORMLOAD_PLAN_OPTIONS_H_
#define NORMD_CLIENT_NORMLOAD_PLAN_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/capacity/bursts.h"
#include "client/capacity/outages.h"
#include "client/fleet/balance.h"
#include "client/load/objective.h"

namespace normd::load {

struct PlanOptions {
  std::vector<std::string> reports;

  // What comes.
  double rate = 0;
  std::string arrival = "poisson";
  capacity::Bursts bursts;
  std::string arrivals_file;

  // The fleet.
  std::int64_t replicas = 0;  // 0: the fewest that meet the objective.
  std::int64_t max_replicas = 100000;
  std::string balance_text = "round_robin";
  int clients = 16;
  int lanes = 0;  // 0: as many as the report's server had.
  int inline_lanes = 0;
  std::int64_t max_batch_requests = 0;  // 0: the largest in the reports.
  absl::Duration max_queue_delay = absl::ZeroDuration();
  std::int64_t max_queue_requests = 1024;
  absl::Duration crash_every = absl::ZeroDuration();
  absl::Duration hang_every = absl::ZeroDuration();
  absl::Duration outage_length = absl::Seconds(10);
  std::string outages_file;

  std::string slo;
  double max_error_share = 0;
  double max_load = 0.95;
  absl::Duration duration = absl::ZeroDuration();  // Of each simulation; 0: long enough.
  std::uint64_t seed = 1;
  std::string json;
  bool help = false;

  // Made from the above by ParsePlanOptions.
  std::optional<Objective> objective;
  client::BalancePolicy balance = client::BalancePolicy::kRoundRobin;
  std::vector<Duration> trace;  // From --arrivals_file.
  capacity::OutageRates outages;
  std::vector<capacity::Outage> listed_outages;  // From --outages_file.
};

// InvalidArgument names the flag, what came and what was wanted. With --help nothing else is
// checked.
absl::StatusOr<PlanOptions> ParsePlanOptions(absl::Span<const std::string> arguments);

std::string PlanHelpText();

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_PLAN_OPTIONS_H_
