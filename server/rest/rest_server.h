// The HTTP front end: its port, its threads and its connections.

#ifndef NORMD_SERVER_REST_REST_SERVER_H_
#define NORMD_SERVER_REST_REST_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/rest/rest_environment.h"
#include "server/rest/rest_options.h"

namespace normd {

// Serves from Start until destroyed. The functions are called by one thread.
class RestServer {
 public:
  // `environment` outlives it; its `later` is set here. Unavailable, with the address, when it
  // cannot be bound.
  static absl::StatusOr<std::unique_ptr<RestServer>> Start(const RestOptions& options,
                                                           RestEnvironment& environment);
  // Drops all connections, and waits for their calls.
  virtual ~RestServer() = default;

  // The addresses with the ports in use.
  virtual const std::string& address() const = 0;
  virtual int port() const = 0;  // The first.

  // From here on each response is its connection's last.
  virtual void Drain() = 0;
  // Accepts no more connections, closes those that wait for a request, and waits for the others
  // until `grace` has passed.
  virtual void Close(Duration grace) = 0;
};

// The descriptors that it may come to hold, with these limits of a server (see DecideLimits).
std::int64_t RestDescriptors(const RestOptions& options);

}  // namespace normd

#endif  // NORMD_SERVER_REST_REST_SERVER_H_
