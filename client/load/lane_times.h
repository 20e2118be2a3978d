// How long a server's lanes take for batches of each size, as its responses tell: what a model of
// its capacity is made from.

#ifndef NORMD_CLIENT_LOAD_LANE_TIMES_H_
#define NORMD_CLIENT_LOAD_LANE_TIMES_H_

#include <cstdint>
#include <map>

#include "base/clock.h"
#include "client/load/histogram.h"
#include "client/load/sender.h"

namespace normd::load {

// A value. Not thread-safe.
class LaneTimes {
 public:
  // A response with OK, `service_time` after its request has left. Without effect where it tells of
  // no batch.
  void Record(const Outcome& outcome, Duration service_time);
  void Merge(const LaneTimes& other);

  // The lane's time (gather, copies and compute) of each response, by the size of the batch that it
  // rode in: a batch of n is recorded n times. Sizes above 64 requests count as the next power of
  // two, so that there are few.
  const std::map<std::int64_t, Histogram>& by_batch() const { return by_batch_; }
  // The rest of the service time, without the wait for a lane: network, gRPC, decoding, encoding
  // and the client.
  const Histogram& beside() const { return beside_; }

  // Rebuild what another process told of.
  void Add(std::int64_t batch_requests, const Histogram& lane_time);
  void AddBeside(const Histogram& beside) { beside_.Merge(beside); }

 private:
  std::map<std::int64_t, Histogram> by_batch_;
  Histogram beside_;
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_LOAD_LANE_TIMES_H_
