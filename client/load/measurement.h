// The measurements of a run.

#ifndef NORMD_CLIENT_LOAD_MEASUREMENT_H_
#define NORMD_CLIENT_LOAD_MEASUREMENT_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "client/load/histogram.h"
#include "client/load/sender.h"

namespace normd::load {

inline constexpr std::size_t kStatusCodes = 17;  // gRPC's, 0 (OK) to 16.

// "OK", "DEADLINE_EXCEEDED"; "CODE_n" for an unknown number.
std::string CodeName(std::size_t code);

// The intended time of a request's send, and when the sender got it; see Outcome::sent.
struct SendTimes {
  TimePoint intended{};
  TimePoint sent{};
};

// The measurements of one kind of request of the mix.
struct ItemMeasurement {
  Histogram response_time;  // Responses with OK only.
  Histogram first_bytes;  // For streams: from the intended send to the first byte of the response.
  std::int64_t errors = 0;
  std::int64_t sent_bytes = 0;  // As in Measurement.
  std::int64_t received_bytes = 0;

  void Merge(const ItemMeasurement& other);
};

// A value: workers measure separately, and the parts are merged. Times are of requests that were
// answered with OK; the others are counted by their code.
struct Measurement {
  Histogram response_time;  // From the intended send to the response: the user's wait.
  Histogram service_time;   // From the actual send to the response.
  Histogram send_lag;       // From the intended to the actual send.

  std::array<std::int64_t, kStatusCodes> codes{};
  std::array<std::string, kStatusCodes>
      first_message;                 // The first message that came with each code.
  std::int64_t warmup_requests = 0;  // Not counted anywhere else.
  std::int64_t cancelled = 0;  // Cancelled by the client, on purpose. Not counted anywhere else.
  // By Item::index, up to the largest recorded one.
  std::vector<ItemMeasurement> items;

  std::int64_t sent_bytes = 0;  // Tensors of all requests.
  std::int64_t received_bytes = 0;

  std::array<Duration, kServerStages> stage_sum{};
  // The number of batches is the sum of 1 / (requests in my batch) over the responses, provided
  // that the server has no other users.
  double batches = 0;
  std::int64_t in_batches = 0;  // Responses that report a batch; a stream's do not.
  std::int64_t max_batch_requests = 0;

  std::int64_t verified = 0;
  std::int64_t wrong = 0;
  std::string first_wrong;

  TimePoint last_received{};

  void Record(const Item& item, const SendTimes& times, const Outcome& outcome);
  void Merge(const Measurement& other);

  std::int64_t requests() const;  // All codes.
  std::int64_t ok() const { return codes[0]; }
  std::int64_t errors() const { return requests() - ok(); }
  double error_share() const;
  // The mean over all responses; zero without any.
  Duration MeanStage(std::size_t stage) const;
  double MeanBatchRequests() const;
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_MEASUREMENT_H_
