// "normload plan": from reports of one server and a load to come, how many replicas.

#ifndef NORMD_CLIENT_NORMLOAD_PLAN_H_
#define NORMD_CLIENT_NORMLOAD_PLAN_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/capacity/fleet_simulation.h"
#include "client/normload/plan_options.h"
#include "client/normload/report.h"

namespace normd::load {

struct PlanPoint {
  std::size_t replicas = 0;
  capacity::SimulationResult result;
  bool holds = false;  // The objective, if there is one.
};

struct Plan {
  capacity::FleetModel fleet;  // But for the number of replicas and their outages.
  capacity::SimulationTimes times;
  double rate = 0;                // Of a trace, in the mean.
  double replica_max_rate = 0;    // What a replica can do at most, in full batches.
  std::vector<PlanPoint> points;  // In the order in which they were simulated.
  // The place of the answer; nullopt: no fleet up to --max_replicas holds.
  std::optional<std::size_t> chosen;
};

// Simulates. InvalidArgument when the reports tell of no batches, or of no lanes that --lanes does
// not give.
absl::StatusOr<Plan> MakePlan(const PlanOptions& options, absl::Span<const Report> reports);

std::string TextPlan(const Plan& plan, const PlanOptions& options);
std::string JsonPlan(const Plan& plan, const PlanOptions& options);

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_PLAN_H_
