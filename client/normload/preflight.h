// One request of each kind before the run, so that an unreachable server, a wrong model or a wrong
// shape is one clear message and not a million errors.

#ifndef NORMD_CLIENT_NORMLOAD_PREFLIGHT_H_
#define NORMD_CLIENT_NORMLOAD_PREFLIGHT_H_

#include <memory>
#include <string>
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
  // One an item: the samples of its tensors; 0 for one that is not streamed.
  std::vector<std::int64_t> stream_samples;
  std::vector<Expectation> expectations;  // One an item with --verify; empty without.
  // One an item: the memory that it shares with the server, through which its request went; empty
  // where tensors travel in messages. shared: with the calls under way.
  std::vector<std::shared_ptr<SharedSlots>> slots;
};

// Gives each entry of the mix that has none the shape that suits its model; and several inputs
// their model's order and their values, where these are indexes. Blocks. The first error of a call;
// of a model that is not loaded with the names of those that are.
absl::Status ChooseShapes(client::Client& client, ProgramOptions& options);

// Blocks. The first error of a call, or of reading the repository; with --verify also DataLoss when
// a response is wrong.
absl::StatusOr<Preflight> RunPreflight(client::Client& client, const Workload& workload,
                                       const ProgramOptions& options);

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_PREFLIGHT_H_
