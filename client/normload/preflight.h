// Sends one request of each kind before the run, so that an unreachable server, a wrong model or a
// wrong shape gives one clear message and not a million errors.

#ifndef NORMD_CLIENT_NORMLOAD_PREFLIGHT_H_
#define NORMD_CLIENT_NORMLOAD_PREFLIGHT_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/load/workload.h"
#include "client/normload/grpc_sender.h"
#include "client/normload/options.h"
#include "client/normload/shared_slots.h"

namespace normd::load {

struct Preflight {
  v1::GetServerInfoResponse server;
  // One per item: the samples of its tensors; 0 if it is not streamed.
  std::vector<std::int64_t> stream_samples;
  std::vector<Expectation> expectations;  // One per item with --verify; empty without.
  // One per item: the memory that it shares with the server, through which its request went; empty
  // if tensors travel in messages. shared: with the calls in flight.
  std::vector<std::shared_ptr<SharedSlots>> slots;
};

// Gives each entry of the mix without a shape one that suits its model; sorts several inputs in the
// model's order, and sets the values of indexes. Blocks. The first error of a call; for a model
// that is not loaded, with the loaded ones' names.
absl::Status ChooseShapes(client::Client& client, ProgramOptions& options);

// Blocks. The first error of a call, or of reading the repository; with --verify also DataLoss for
// a wrong response.
absl::StatusOr<Preflight> RunPreflight(client::Client& client, const Workload& workload,
                                       const ProgramOptions& options);

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_PREFLIGHT_H_
