// The flags that say how tensors come to the server and back.

#ifndef NORMD_CLIENT_NORMLOAD_PLANE_FLAGS_H_
#define NORMD_CLIENT_NORMLOAD_PLANE_FLAGS_H_

#include <string>

#include "absl/status/statusor.h"
#include "flags/flag_set.h"

namespace normd::load {

enum class Plane {
  kGrpc,        // In messages over TCP.
  kUnixSocket,  // In messages over a unix socket.
  kShared,      // In memory that both have mapped; messages name it.
  kDevice,      // In memory of a CUDA device, likewise.
};
// As the flag and the reports call it: "grpc", "uds", "shm", "cuda".
const char* Name(Plane plane);
// The plane of that name; kGrpc for any other text.
Plane PlaneOf(const std::string& name);

// What else is asked of the calls, of which shared memory does not carry all.
struct PlannedCalls {
  std::string server;     // The value of --server.
  bool balanced = false;  // Over several servers.
  std::string stream;     // An entry of the mix that is streamed; empty: none.
  double cancel_share = 0;
  int max_sending = 0;
};

struct PlaneFlags {
  std::string name;     // Empty: as --server and --shared_memory say.
  std::string address;  // The server's --shared_memory_listen.
  int device = 0;       // For "cuda": where the tensors lie.

  // Borrows this.
  void AddTo(FlagSet& flags);
  // InvalidArgument names the flag, what came and what was wanted: for a plane that is none, or
  // does not fit the server's address, and for what it does not carry.
  absl::StatusOr<Plane> Make(const PlannedCalls& calls) const;

 private:
  absl::StatusOr<Plane> DevicePlane(const PlannedCalls& calls) const;
};

}  // namespace normd::load

#endif  // NORMD_CLIENT_NORMLOAD_PLANE_FLAGS_H_
