// A call in flight.

#ifndef NORMD_CLIENT_PENDING_CALL_H_
#define NORMD_CLIENT_PENDING_CALL_H_

namespace normd::client {

// Thread-safe. Dropping it does not end the call.
class PendingCall {
 public:
  virtual ~PendingCall() = default;
  // Asks for an early end: `done` then receives CANCELLED, or the response if that is faster.
  virtual void Cancel() = 0;
};

}  // namespace normd::client

#endif  // NORMD_CLIENT_PENDING_CALL_H_
