// A connection to a server and a workload for it: runs the load, once or at many points.

#ifndef NORMD_CLIENT_NORMLOAD_SESSION_H_
#define NORMD_CLIENT_NORMLOAD_SESSION_H_

#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/statusor.h"
#include "client/load/pacer.h"
#include "client/load/workload.h"
#include "client/normload/grpc_sender.h"
#include "client/normload/interrupts.h"
#include "client/normload/options.h"
#include "client/normload/report.h"

namespace normd::load {

// Where a session tells of itself and hears from its user. Borrowed.
struct Attention {
  Interrupts* interrupts = nullptr;
  std::ostream* progress = nullptr;  // Null: none.
  bool terminal = false;
};

// Not thread-safe.
class Session {
 public:
  // Connects, chooses the shapes that are left to the models, and sends one request of each kind.
  // The first error of a call names the server.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const ProgramOptions& options);

  // The load that the options say: one run, a sweep or a search. Fills `report` as far as it comes,
  // and returns what made it fail or end before its time. Blocks.
  absl::Status Run(const Attention& attention, Report& report);

  const v1::GetServerInfoResponse& server() const { return server_; }
  // With the shapes that were chosen.
  const ProgramOptions& options() const { return options_; }

 private:
  explicit Session(const ProgramOptions& options) : options_(options) {}

  absl::Status RunSweep(const Attention& attention, Report& report);
  absl::Status RunSearch(const Attention& attention, Report& report);
  // One run at the options' load, or at `load` where it is above 0. Judged but for the share of
  // errors.
  absl::Status RunOnce(double load, const Attention& attention, Report& report);
  // Runs to the end on a thread of its own, while this one attends to the user, to the progress, to
  // the conditions to stop early, and scrapes the server's metrics.
  void RunAttended(LoadRun& run, const Attention& attention, RunReport& report) const;

  ProgramOptions options_;              // Constant after Open.
  std::unique_ptr<Workload> workload_;  // At a fixed address: the sender keeps references.
  v1::GetServerInfoResponse server_;
  SteadyPacer pacer_;
  std::unique_ptr<GrpcSender> sender_;
  std::vector<const client::FleetClient*> fleets_;  // The sender's clients, where they are fleets.
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_SESSION_H_
