// A connection to a server and a workload for it: runs the load, once or at many points.

#ifndef NORMD_CLIENT_NORMLOAD_SESSION_H_
#define NORMD_CLIENT_NORMLOAD_SESSION_H_

#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "client/load/pacer.h"
#include "client/load/sender.h"
#include "client/load/workload.h"
#include "client/normload/options.h"
#include "client/normload/report.h"

namespace normd::load {

// Reports when the user wants to stop.
class Interrupts {
 public:
  virtual ~Interrupts() = default;
  // Waits for at most `limit`; true: stop sending and report. Called by one thread.
  virtual bool Wait(Duration limit) = 0;
};

// A session's progress output and its user's interrupts. Borrowed.
struct Attention {
  Interrupts* interrupts = nullptr;
  std::ostream* progress = nullptr;  // Null: none.
  bool terminal = false;
};

// Not thread-safe.
class Session {
 public:
  // Connects, chooses shapes for the models where none are given, and sends one request of each
  // kind. The first error of a call names the server.
  static absl::StatusOr<std::unique_ptr<Session>> Open(const ProgramOptions& options);

  // Runs the options' load: one run, a sweep or a search. Fills `report` as far as it gets, and
  // returns the reason why it failed or ended early. Blocks.
  absl::Status Run(const Attention& attention, Report& report);

  const v1::GetServerInfoResponse& server() const { return server_; }
  // With the chosen shapes.
  const ProgramOptions& options() const { return options_; }

 private:
  explicit Session(const ProgramOptions& options) : options_(options) {}

  absl::Status RunSweep(const Attention& attention, Report& report);
  absl::Status RunSearch(const Attention& attention, Report& report);
  // One run at the options' load, or at `load` if it is above 0. Judges everything but the share of
  // errors.
  absl::Status RunOnce(double load, const Attention& attention, Report& report);
  // Runs to the end on a thread of its own. This thread meanwhile watches the user, the progress
  // and the conditions to stop early, and scrapes the server's metrics.
  void RunAttended(LoadRun& run, const Attention& attention, RunReport& report) const;

  ProgramOptions options_;              // Constant after Open.
  std::unique_ptr<Workload> workload_;  // At a fixed address: the sender keeps references.
  v1::GetServerInfoResponse server_;
  SteadyPacer pacer_;
  std::unique_ptr<Sender> sender_;
  std::vector<const client::FleetClient*> fleets_;  // The sender's clients, if they are fleets.
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_SESSION_H_
