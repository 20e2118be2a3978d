// One call over HTTP, from its head to its response.

#ifndef NORMD_SERVER_REST_REST_CALL_H_
#define NORMD_SERVER_REST_REST_CALL_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "server/accept/call_context.h"
#include "server/http/certificate_names.h"
#include "server/rest/request_body.h"
#include "server/rest/rest_environment.h"
#include "server/rest/rest_head.h"
#include "server/rest/rest_reply.h"
#include "server/rest/routes.h"

namespace normd {

// What brought a call. Borrows; outlives it.
struct RestArrival {
  const RestHead& head;
  const Route& route;
  const std::shared_ptr<Caller>& caller;
  const CertificateNames& certificate;
};

// Its connection's thread calls every function, in this order: Authorize; Hold while the body
// comes; Run once, or Refuse; Leave, after Run, if the client has left; Record once the response is
// sent. `reply` is called exactly once after Run or Refuse, on any thread, perhaps before these
// return; the call outlives both.
class RestCall {
 public:
  using Reply = std::function<void()>;

  RestCall(RestEnvironment& environment, const RestArrival& arrival, Method method, Reply reply);
  virtual ~RestCall() = default;
  RestCall(const RestCall&) = delete;
  RestCall& operator=(const RestCall&) = delete;

  absl::Status Authorize() { return context_.Authorize(); }
  virtual std::int64_t max_body_bytes() const = 0;
  // Takes this many more bytes of the budgets, for the body.
  virtual absl::Status Hold(std::int64_t /*bytes*/) { return absl::OkStatus(); }
  virtual void Run(RequestBody body) = 0;
  // Ends a call whose body is not served.
  virtual void Refuse(const absl::Status& status) { Finish(status); }
  virtual void Leave() { context_.Leave(); }
  // `code` is the client's, if it is not the response's.
  void SetCode(absl::StatusCode code) { context_.SetCode(code); }
  virtual void Record() = 0;

  RestReply& reply() { return reply_; }
  const RequestIds& ids() const { return context_.ids(); }

 protected:
  // Ends the call: with reply_, or with the error.
  void Finish(const absl::Status& status);

  RestEnvironment& environment_;
  const RestHead& head_;
  const Route& route_;
  CallContext context_;
  RestReply reply_;

 private:
  const Reply replied_;
};

// The call of a route; never null. May throw std::bad_alloc.
std::unique_ptr<RestCall> MakeRestCall(RestEnvironment& environment, const RestArrival& arrival,
                                       RestCall::Reply reply);

}  // namespace normd

#endif  // NORMD_SERVER_REST_REST_CALL_H_
