#include "server/rest/rest_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/accept/client_status.h"
#include "server/accept/request_ids.h"

namespace normd {
namespace {

CallArrival ArrivalOf(const RestEnvironment& environment, const RestArrival& from, Method method) {
  const AcceptEnvironment& accept = environment.accept;
  CallArrival arrival;
  arrival.method = method;
  arrival.at = accept.clock.Now();
  arrival.caller = from.caller;
  if (accept.authorizer != nullptr) {
    PeerCredentials credentials;
    if (from.head.authorization.has_value()) {
      credentials.authorization = *from.head.authorization;
    } else {
      credentials.uris.assign(from.certificate.uris.begin(), from.certificate.uris.end());
      credentials.dns_names.assign(from.certificate.dns_names.begin(),
                                   from.certificate.dns_names.end());
    }
    arrival.identity = accept.authorizer->Recognise(credentials);
  }
  arrival.ids = FitRequestIds(from.head.request_id, from.head.traceparent);
  return arrival;
}

}  // namespace

RestCall::RestCall(RestEnvironment& environment, const RestArrival& arrival, Method method,
                   Reply reply)
    : environment_(environment),
      head_(arrival.head),
      route_(arrival.route),
      context_(environment.accept, ArrivalOf(environment, arrival, method)),
      replied_(std::move(reply)) {}

void RestCall::Finish(const absl::Status& status) {
  const absl::Status told = context_.End(status);
  if (!told.ok()) {
    const absl::Status made = CatchAll([&] {
      reply_ = ErrorReply(told, environment_.retry_after);
      return absl::OkStatus();
    });
    // Without memory for the words the status is left.
    if (!made.ok()) reply_ = RestReply{HttpStatusOf(told.code()), {}, {}, {}};
  }
  replied_();
}

}  // namespace normd
