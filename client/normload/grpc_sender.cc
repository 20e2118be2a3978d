#include "client/normload/grpc_sender.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/verify/compare.h"
#include "grpcpp/alarm.h"

namespace normd::load {

absl::StatusOr<std::unique_ptr<GrpcSender>> GrpcSender::Create(
    std::vector<std::unique_ptr<client::Client>> clients, const Workload& workload,
    std::vector<Expectation> expectations, const GrpcSenderOptions& options, const Clock& clock) {
  std::vector<client::EncodedRequest> requests;
  for (const Item& item : workload.items()) {
    client::NormalizeRequest request;
    request.model = item.entry.model;
    request.version = options.version;
    request.input = item.input.view();
    request.input_owner = item.input.owner();
    request.priority = static_cast<v1::Priority>(item.entry.priority);
    request.queue_timeout = item.entry.queue_timeout;
    if (item.y) {
      request.y = item.y->view();
      request.y_owner = item.y->owner();
    }
    absl::StatusOr<client::EncodedRequest> encoded = client::EncodedRequest::Create(request);
    if (!encoded.ok()) return encoded.status();
    requests.push_back(*std::move(encoded));
  }
  return std::unique_ptr<GrpcSender>(new GrpcSender(std::move(clients), std::move(requests),
                                                    std::move(expectations), options, clock));
}

GrpcSender::GrpcSender(std::vector<std::unique_ptr<client::Client>> clients,
                       std::vector<client::EncodedRequest> requests,
                       std::vector<Expectation> expectations, const GrpcSenderOptions& options,
                       const Clock& clock)
    : clients_(std::move(clients)),
      requests_(std::move(requests)),
      expectations_(std::move(expectations)),
      options_(options),
      clock_(clock) {}

void GrpcSender::Send(const Outgoing& outgoing, Done done) {
  const Item& item = *outgoing.item;
  client::Client& client = *clients_[outgoing.stream % clients_.size()];
  const Duration timeout = item.entry.timeout.value_or(options_.timeout);
  const bool verify = outgoing.verify && !expectations_.empty();
  if (outgoing.cancel_after) return SendAndCancel(outgoing, timeout, std::move(done));
  client.NormalizeAsync(requests_[item.index], timeout,
                        [this, &item, verify, done = std::move(done)](
                            const absl::StatusOr<client::NormalizeResponse>& response) mutable {
                          std::move(done)(ToOutcome(response, item, verify));
                        });
}

void GrpcSender::SendAndCancel(const Outgoing& outgoing, Duration timeout, Done done) {
  const Item& item = *outgoing.item;
  client::Client& client = *clients_[outgoing.stream % clients_.size()];
  // shared: the call may end, and drop the alarm, before the alarm is set.
  auto alarm = std::make_shared<grpc::Alarm>();
  const auto call =
      client.NormalizeAsync(requests_[item.index], timeout,
                            [this, &item, alarm, done = std::move(done)](
                                const absl::StatusOr<client::NormalizeResponse>& response) mutable {
                              alarm.reset();  // It holds the call, which holds this.
                              Outcome outcome = ToOutcome(response, item, false);
                              outcome.cancelled = outcome.code == absl::StatusCode::kCancelled;
                              std::move(done)(outcome);
                            });
  alarm->Set(std::chrono::system_clock::now() + *outgoing.cancel_after, [call](bool due) {
    if (due) call->Cancel();
  });
}

Outcome GrpcSender::ToOutcome(const absl::StatusOr<client::NormalizeResponse>& response,
                              const Item& item, bool verify) const {
  Outcome outcome;
  outcome.received = clock_.Now();
  if (!response.ok()) {
    outcome.code = response.status().code();
    outcome.message = std::string(response.status().message());
    return outcome;
  }
  outcome.output_bytes = static_cast<std::int64_t>(response->size_bytes());
  const v1::StageTimes& stages = response->stages();
  outcome.stages = {Duration{stages.decode_ns()},  Duration{stages.queue_ns()},
                    Duration{stages.gather_ns()},  Duration{stages.copy_in_ns()},
                    Duration{stages.compute_ns()}, Duration{stages.copy_out_ns()}};
  outcome.batch_requests = response->batch().requests();
  if (!verify) return outcome;
  const Expectation& expectation = expectations_[item.index];
  if (response->version() != expectation.version) return outcome;
  const client::Comparison comparison =
      client::Compare(response->dtype(), response->pieces(), expectation.elements);
  const bool same_kind =
      response->dtype() == item.entry.dtype && response->shape() == expectation.shape;
  outcome.verdict = comparison.ok() && same_kind ? Verdict::kRight : Verdict::kWrong;
  if (!same_kind) {
    outcome.message =
        absl::StrCat(item.entry.ToString(), ": the answer is ", norm::Name(response->dtype()), " ",
                     response->shape().ToString());
  } else if (!comparison.ok()) {
    outcome.message = absl::StrCat(item.entry.ToString(), ": ", client::Describe(comparison));
  }
  return outcome;
}

}  // namespace normd::load
