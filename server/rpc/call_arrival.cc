#include "server/rpc/call_arrival.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>

#include "server/rpc/call_deadline.h"

namespace normd {
namespace {

constexpr char kRequestId[] = "x-request-id";
constexpr char kTraceParent[] = "traceparent";

}  // namespace

RequestIds ReadRequestIds(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  const auto value_of = [&metadata](const char* key) {
    // lower_bound, as find may return any of several.
    const auto entry = metadata.lower_bound(key);
    if (entry == metadata.end() || entry->first != key) return absl::string_view();
    return absl::string_view(entry->second.data(), entry->second.size());
  };
  return FitRequestIds(value_of(kRequestId), value_of(kTraceParent));
}

// ServerContext::peer() would make two copies of the name.
std::shared_ptr<Caller> CallerOf(grpc::CallbackServerContext& context, Callers& callers) {
  grpc_call* const call = context.c_call();
  if (call == nullptr) return nullptr;
  const std::unique_ptr<char, decltype(&gpr_free)> name(grpc_call_get_peer(call), gpr_free);
  return callers.Find(name.get());
}

CallArrival ArrivalOf(grpc::CallbackServerContext& context, Method method,
                      AcceptEnvironment& environment) {
  CallArrival arrival;
  arrival.method = method;
  arrival.at = environment.clock.Now();
  arrival.caller = CallerOf(context, environment.callers);
  arrival.deadline = DeadlineOf(context, environment.clock);
  arrival.ids = ReadRequestIds(context.client_metadata());
  const RequestIds& ids = arrival.ids;
  if (!ids.request_id.empty()) context.AddTrailingMetadata(kRequestId, ids.request_id);
  if (!ids.traceparent.empty()) context.AddTrailingMetadata(kTraceParent, ids.traceparent);
  return arrival;
}

}  // namespace normd
