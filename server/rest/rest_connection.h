// One connection of the HTTP front end.

#ifndef NORMD_SERVER_REST_REST_CONNECTION_H_
#define NORMD_SERVER_REST_REST_CONNECTION_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/buffer_pool.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "boost/asio/io_context.hpp"
#include "server/callers/caller.h"
#include "server/metrics/metrics.h"
#include "server/rest/rest_environment.h"
#include "server/rest/rest_options.h"

namespace normd {

// What all connections use; outlives them.
struct RestParts {
  const RestOptions& options;
  RestEnvironment& environment;
  ConnectionMetrics& metrics;
  BufferPool bodies{options.pooled_bytes};
  // Set for good when the server drains: responses end their connections. Relaxed: a connection
  // that sees it late is closed with the others.
  std::atomic<bool> draining{false};
  // Made in advance, for the end of a call without memory.
  const absl::Status client_left = absl::CancelledError("the client left");
};

// Takes requests one after another; a further one is read when the response is with the kernel.
// Used on the thread of its context.
class RestConnection {
 public:
  virtual ~RestConnection() = default;

  virtual void Start() = 0;
  // Ends the connection if its time is over.
  virtual void Check(TimePoint now) = 0;
  // Has a stop, from here on, end the call whose body comes: inference once the body is quiet, any
  // other soon. May throw std::bad_alloc.
  virtual void Drain() = 0;
  // Ends it if no call works and no response goes.
  virtual void CloseIdle() = 0;
  // Closes it if it waits until its last response is delivered: from then on the kernel alone does.
  virtual void CloseEnding() = 0;
  // Ends it at once, with its call.
  virtual void Drop() = 0;

  // Called with the last reference.
  std::function<void()> on_end;
};

// Not started. With TLS where the options have it.
std::shared_ptr<RestConnection> MakeRestConnection(boost::asio::io_context& context,
                                                   Descriptor socket,
                                                   std::shared_ptr<Caller> caller,
                                                   RestParts& parts);

}  // namespace normd

#endif  // NORMD_SERVER_REST_REST_CONNECTION_H_
