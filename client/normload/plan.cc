#include "client/normload/plan.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/capacity/replica_search.h"
#include "client/load/arrivals.h"
#include "client/normload/units.h"
#include "nlohmann/json.hpp"

namespace normd::load {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kRequests = 100'000;
constexpr double kBatches = 200;
constexpr double kBursts = 50;

std::unique_ptr<Arrivals> ArrivalsOf(const PlanOptions& options) {
  if (!options.trace.empty()) return TracedArrivals(options.trace);
  if (options.arrival == "constant") return ConstantArrivals(options.rate);
  if (options.arrival == "poisson") return PoissonArrivals(options.rate, options.seed);
  return capacity::BurstyArrivals(options.rate, options.bursts, options.seed);
}

// How fast a replica takes work that never ends.
double MaxRate(const capacity::FleetModel& fleet) {
  const capacity::ReplicaModel& replica = fleet.replica;
  return replica.lanes * fleet.lane.MaxRate(replica.max_batch_requests);
}

// What a lane does between two batches: what is left of the time of runs in which it never waits
// for requests, which are closed loops of at least twice as many callers as all lanes hold. Nothing
// where there was no such run.
Duration Turnaround(absl::Span<const Report> reports, const capacity::ReplicaModel& replica) {
  double least_ns = std::numeric_limits<double>::infinity();
  for (const Report& report : reports) {
    if (report.options.open_loop()) continue;
    for (const RunReport& run : report.runs) {
      const double callers = report.several() ? run.load : report.options.concurrency;
      if (callers < 2.0 * replica.lanes * static_cast<double>(replica.max_batch_requests)) continue;
      double batches = 0;
      double busy_ns = 0;
      for (const auto& [requests, times] : run.result.measured.lane_times.by_batch()) {
        batches += static_cast<double>(times.count()) / static_cast<double>(requests);
        busy_ns += static_cast<double>(times.sum().count()) / static_cast<double>(requests);
      }
      if (batches == 0) continue;
      // The first request after the warm-up waits behind others, which are not measured.
      const Duration response = run.result.measured.response_time.mean();
      const double before_ns =
          std::max(0.0, static_cast<double>(response.count()) - busy_ns / batches);
      const double all_ns =
          replica.lanes * (static_cast<double>(run.result.elapsed.count()) - before_ns);
      least_ns = std::min(least_ns, std::max(0.0, all_ns - busy_ns) / batches);
    }
  }
  return Duration(std::isfinite(least_ns) ? std::llround(least_ns) : 0);
}

// What the reports say of the lanes, and how the options say otherwise.
absl::Status FitFleet(const PlanOptions& options, absl::Span<const Report> reports,
                      capacity::FleetModel& fleet) {
  LaneTimes measured;
  for (const Report& report : reports) {
    for (const RunReport& run : report.runs) measured.Merge(run.result.measured.lane_times);
  }
  absl::StatusOr<capacity::LaneModel> lane = capacity::LaneModel::Fit(measured);
  if (!lane.ok()) return lane.status();
  fleet.lane = *std::move(lane);
  fleet.beside = capacity::Quantiles(measured.beside());
  fleet.replica.lanes = options.lanes > 0 ? options.lanes : reports.front().server.lanes_size();
  if (fleet.replica.lanes == 0) {
    return absl::InvalidArgumentError("--lanes: 0, wanted 1 or more: the report tells of none");
  }
  fleet.replica.inline_lanes = options.inline_lanes;
  fleet.replica.max_batch_requests = options.max_batch_requests > 0
                                         ? options.max_batch_requests
                                         : measured.by_batch().rbegin()->first;
  fleet.replica.max_queue_delay = absl::ToChronoNanoseconds(options.max_queue_delay);
  fleet.replica.max_queue_requests = options.max_queue_requests;
  fleet.lane.set_turnaround(Turnaround(reports, fleet.replica));
  fleet.balance = options.balance;
  fleet.clients = options.clients;
  return absl::OkStatus();
}

capacity::SimulationTimes TimesFor(const PlanOptions& options, const Plan& plan) {
  // A trace is simulated as it is: what it begins with counts.
  if (!options.trace.empty()) return {Duration{0}, options.trace.back() + Duration{1}};
  Duration measured = absl::ToChronoNanoseconds(options.duration);
  if (measured <= Duration{0}) {
    const double batch_s = Seconds(plan.fleet.lane.Mean(plan.fleet.replica.max_batch_requests));
    double seconds = std::max(kRequests / plan.rate, kBatches * batch_s);
    if (options.arrival == "bursts") {
      seconds = std::max(seconds, kBursts * Seconds(options.bursts.length) / options.bursts.share);
    }
    measured = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }
  return {measured / 4, measured};
}

bool Holds(const capacity::SimulationResult& result, const PlanOptions& options) {
  if (!options.objective) return true;
  const Objective& objective = *options.objective;
  // The last part too: a fleet that falls behind is late at the end.
  return result.response_time.count() > 0 &&
         result.response_time.Percentile(objective.percent) <= objective.limit &&
         result.parts.back().Percentile(objective.percent) <= objective.limit &&
         result.failed_share() <= options.max_error_share;
}

void Simulate(const PlanOptions& options, std::size_t replicas, Plan& plan) {
  capacity::FleetModel fleet = plan.fleet;
  fleet.replicas = replicas;
  fleet.outages = capacity::RandomOutages(options.outages, replicas,
                                          plan.times.warmup + plan.times.measured, options.seed);
  for (const capacity::Outage& outage : options.listed_outages) {
    if (outage.replica < replicas) fleet.outages.push_back(outage);
  }
  const std::unique_ptr<Arrivals> arrivals = ArrivalsOf(options);
  PlanPoint point;
  point.replicas = replicas;
  point.result = capacity::SimulateFleet(fleet, *arrivals, plan.times, options.seed + 1);
  point.holds = Holds(point.result, options);
  plan.points.push_back(std::move(point));
}

double Load(const Plan& plan, std::size_t replicas) {
  return plan.rate / (static_cast<double>(replicas) * plan.replica_max_rate);
}

std::string Row(const Plan& plan, const PlanPoint& point) {
  const Histogram& times = point.result.response_time;
  return absl::StrFormat("  %9d  %5.1f %%  %9.2f  %9.2f  %9.2f  %6.2f  %8d  %7d\n", point.replicas,
                         100 * Load(plan, point.replicas), Milliseconds(times.Percentile(50)),
                         Milliseconds(times.Percentile(99)), Milliseconds(times.Percentile(99.9)),
                         point.result.MeanBatchRequests(), point.result.requests,
                         point.result.refused + point.result.lost);
}

std::string Answer(const Plan& plan, const PlanOptions& options) {
  if (!options.objective) return "";
  const std::string objective = options.objective->ToString();
  if (!plan.chosen) {
    return absl::StrFormat("%s is not met by up to %d replicas\n", objective,
                           options.replicas > 0 ? options.replicas : options.max_replicas);
  }
  const PlanPoint& chosen = plan.points[*plan.chosen];
  return absl::StrFormat("%d replicas meet %s at %.6g/s (%.6g/s each)\n", chosen.replicas,
                         objective, plan.rate, plan.rate / static_cast<double>(chosen.replicas));
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const PlanOptions& options, absl::Span<const Report> reports) {
  Plan plan;
  if (absl::Status status = FitFleet(options, reports, plan.fleet); !status.ok()) return status;
  plan.replica_max_rate = MaxRate(plan.fleet);
  plan.rate = options.rate;
  if (!options.trace.empty()) {
    const double seconds = std::max(1e-9, Seconds(options.trace.back()));
    plan.rate = static_cast<double>(options.trace.size()) / seconds;
  }
  plan.times = TimesFor(options, plan);
  if (options.replicas > 0) {
    Simulate(options, static_cast<std::size_t>(options.replicas), plan);
    if (plan.points.back().holds) plan.chosen = 0;
    return plan;
  }
  // Inline lanes do what full batches do not.
  const double least = options.inline_lanes > 0
                           ? 1
                           : std::ceil(plan.rate / (plan.replica_max_rate * options.max_load));
  const auto fewest = capacity::FewestReplicas(
      static_cast<std::size_t>(std::clamp(least, 1.0, 1e9)),
      static_cast<std::size_t>(options.max_replicas), [&](std::size_t replicas) {
        Simulate(options, replicas, plan);
        return plan.points.back().holds;
      });
  for (std::size_t i = 0; fewest && i < plan.points.size(); ++i) {
    if (plan.points[i].replicas == *fewest) plan.chosen = i;
  }
  return plan;
}

std::string TextPlan(const Plan& plan, const PlanOptions& options) {
  const capacity::FleetModel& fleet = plan.fleet;
  const std::int64_t most = fleet.replica.max_batch_requests;
  std::string text = absl::StrFormat(
      "one replica: %d lanes, batches of up to %d requests in %.2f ms (one in %.2f ms), %.2f ms "
      "between two, at most %.6g/s\n"
      "%s, %d clients; %.1f s simulated\n"
      "   replicas     load     p50 ms     p99 ms   p99.9 ms   batch  requests   failed\n",
      fleet.replica.lanes, most, Milliseconds(fleet.lane.Mean(most)),
      Milliseconds(fleet.lane.Mean(1)), Milliseconds(fleet.lane.turnaround()),
      plan.replica_max_rate, options.balance_text, fleet.clients, Seconds(plan.times.measured));
  std::vector<const PlanPoint*> points;
  for (const PlanPoint& point : plan.points) points.push_back(&point);
  std::sort(points.begin(), points.end(),
            [](const PlanPoint* a, const PlanPoint* b) { return a->replicas < b->replicas; });
  for (const PlanPoint* point : points) text += Row(plan, *point);
  return text + Answer(plan, options);
}

std::string JsonPlan(const Plan& plan, const PlanOptions& options) {
  Json points = Json::array();
  for (const PlanPoint& point : plan.points) {
    const capacity::SimulationResult& result = point.result;
    Json one = {{"replicas", point.replicas},
                {"load", Load(plan, point.replicas)},
                {"requests", result.requests},
                {"refused", result.refused},
                {"lost", result.lost},
                {"retries", result.retries},
                {"batch_requests", result.MeanBatchRequests()},
                {"busy_share", result.busy_share},
                {"mean_us", Microseconds(result.response_time.mean())}};
    for (const auto& [name, percent] :
         {std::pair{"p50_us", 50.0}, {"p90_us", 90.0}, {"p99_us", 99.0}, {"p99_9_us", 99.9}}) {
      one[name] = Microseconds(result.response_time.Percentile(percent));
    }
    for (const Histogram& part : result.parts) {
      one["parts_p99_us"].push_back(Microseconds(part.Percentile(99)));
    }
    if (options.objective) one["holds"] = point.holds;
    points.push_back(std::move(one));
  }
  const Json json = {{"schema", "normload_plan"},
                     {"schema_version", 1},
                     {"rate_per_s", plan.rate},
                     {"lanes", plan.fleet.replica.lanes},
                     {"max_batch_requests", plan.fleet.replica.max_batch_requests},
                     {"batch_base_us", Microseconds(plan.fleet.lane.base())},
                     {"batch_each_us", Microseconds(plan.fleet.lane.each())},
                     {"turnaround_us", Microseconds(plan.fleet.lane.turnaround())},
                     {"replica_max_rate_per_s", plan.replica_max_rate},
                     {"measured_s", Seconds(plan.times.measured)},
                     {"points", points},
                     {"chosen", plan.chosen ? Json(*plan.chosen) : Json(nullptr)}};
  return json.dump(1) + "\n";
}

}  // namespace normd::load
