#include "client/normload/grpc_sender.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/stream_call.h"
#include "client/tensor/stream_order.h"
#include "client/verify/compare.h"
#include "grpcpp/alarm.h"

namespace normd::load {
namespace {

// As Verify, for outputs that were copied out of a response.
void VerifyCopies(const Item& item, const Expectation& expectation,
                  absl::Span<const client::TensorSpec> specs,
                  const absl::StatusOr<std::vector<client::Tensor>>& outputs, Outcome& outcome) {
  if (!outputs.ok()) {
    outcome.verdict = Verdict::kWrong;
    outcome.message = absl::StrCat(item.entry.ToString(), ": ", outputs.status().message());
    return;
  }
  Verify(item, expectation, client::ReceivedTensors(specs, *outputs).tensors(), outcome);
}

void SetError(const absl::Status& status, Outcome& outcome) {
  outcome.code = status.code();
  outcome.message = std::string(status.message());
}

void SetStages(const v1::StageTimes& stages, Outcome& outcome) {
  outcome.stages = {Duration{stages.decode_ns()},  Duration{stages.queue_ns()},
                    Duration{stages.gather_ns()},  Duration{stages.copy_in_ns()},
                    Duration{stages.compute_ns()}, Duration{stages.copy_out_ns()}};
}

Outcome ToOutcome(const absl::StatusOr<client::NormalizeResponse>& response, const Item& item,
                  const Expectation* expectation, TimePoint now) {
  Outcome outcome;
  outcome.received = now;
  if (!response.ok()) {
    SetError(response.status(), outcome);
    return outcome;
  }
  outcome.output_bytes = static_cast<std::int64_t>(response->size_bytes());
  SetStages(response->stages(), outcome);
  outcome.batch_requests = response->batch().requests();
  if (expectation != nullptr && response->version() == expectation->version) {
    absl::InlinedVector<client::ReceivedTensor, 2> received;
    for (const client::OutputTensor& output : response->outputs()) {
      received.push_back({&output.spec(), output.pieces()});
    }
    Verify(item, *expectation, received, outcome);
  }
  return outcome;
}

// The results of a stream's response. Its bytes are kept only for verification.
struct StreamedReply {
  const Expectation* expectation = nullptr;
  std::optional<TimePoint> first_bytes;
  std::vector<std::byte> bytes;
};

Outcome ToOutcome(const absl::StatusOr<client::StreamResult>& result, const Item& item,
                  const StreamedReply& reply, TimePoint now) {
  Outcome outcome;
  outcome.received = now;
  if (!result.ok()) {
    SetError(result.status(), outcome);
    return outcome;
  }
  for (const client::TensorSpec& output : result->outputs) {
    outcome.output_bytes += client::TensorBytes(output.dtype, output.shape).value_or(0);
  }
  outcome.first_bytes = reply.first_bytes;
  SetStages(result->trailer.stages(), outcome);
  if (reply.expectation != nullptr && result->version == reply.expectation->version) {
    VerifyCopies(item, *reply.expectation, result->outputs,
                 client::SplitStream(result->outputs, reply.bytes, result->samples), outcome);
  }
  return outcome;
}

}  // namespace

void SetFields(const Item& item, std::int64_t version, client::CallFields& fields) {
  fields.model = item.entry.model;
  fields.version = version;
  fields.outputs = item.entry.outputs;
  fields.priority = static_cast<v1::Priority>(item.entry.priority);
  fields.queue_timeout = item.entry.queue_timeout;
}

client::NormalizeRequest RequestFor(const Item& item, client::Protocol protocol,
                                    std::int64_t version) {
  client::NormalizeRequest request;
  SetFields(item, version, request);
  request.protocol = protocol;
  request.inputs = item.NamedInputs();
  return request;
}

absl::StatusOr<GrpcSender::Prepared> GrpcSender::Prepare(const Item& item,
                                                         const GrpcSenderOptions& options) {
  if (item.entry.streamed()) {
    client::StreamedTensor stream;
    SetFields(item, options.version, stream.request);
    stream.request.inputs = item.Specs();
    stream.request.timeout = item.entry.timeout.value_or(options.timeout);
    stream.request.chunk_bytes = item.entry.stream_chunk_bytes;
    client::Tensor joined = item.inputs.front();
    if (item.inputs.size() > 1) {
      const bool known = item.index < options.stream_samples.size();
      absl::StatusOr<client::Tensor> bytes =
          client::JoinStream(item.inputs, known ? options.stream_samples[item.index] : 0);
      if (!bytes.ok()) return bytes.status();
      joined = *std::move(bytes);
    }
    stream.bytes = joined.bytes();
    stream.owner = joined.owner();
    return Prepared{std::nullopt, std::make_shared<const client::StreamedTensor>(stream)};
  }
  if (!options.slots.empty()) return Prepared{};
  absl::StatusOr<client::EncodedRequest> encoded =
      client::EncodedRequest::Create(RequestFor(item, options.protocol, options.version));
  if (!encoded.ok()) return encoded.status();
  return Prepared{*std::move(encoded), nullptr};
}

absl::StatusOr<std::unique_ptr<GrpcSender>> GrpcSender::Create(
    std::vector<std::unique_ptr<client::Caller>> clients, const Workload& workload,
    std::vector<Expectation> expectations, const GrpcSenderOptions& options, const Clock& clock) {
  std::vector<Prepared> prepared;
  for (const Item& item : workload.items()) {
    absl::StatusOr<Prepared> one = Prepare(item, options);
    if (!one.ok()) return one.status();
    prepared.push_back(*std::move(one));
  }
  return std::unique_ptr<GrpcSender>(new GrpcSender(std::move(clients), std::move(prepared),
                                                    std::move(expectations), options, clock));
}

GrpcSender::GrpcSender(std::vector<std::unique_ptr<client::Caller>> clients,
                       std::vector<Prepared> prepared, std::vector<Expectation> expectations,
                       const GrpcSenderOptions& options, const Clock& clock)
    : clients_(std::move(clients)),
      prepared_(std::move(prepared)),
      expectations_(std::move(expectations)),
      options_(options),
      clock_(clock) {
  if (options_.max_sending <= 0) return;
  for (std::size_t i = 0; i < clients_.size(); ++i) {
    backlogs_.push_back(std::make_unique<Backlog>(options_.max_sending));
  }
}

void GrpcSender::Send(const Outgoing& outgoing, Done done) {
  if (outgoing.cancel_after) return SendAndCancel(outgoing, std::move(done));
  if (backlogs_.empty() || outgoing.item->entry.streamed()) {
    const Duration timeout = outgoing.item->entry.timeout.value_or(options_.timeout);
    SendCall(outgoing, timeout, std::move(done));
    return;
  }
  Backlog& backlog = *backlogs_[outgoing.caller % backlogs_.size()];
  Backlog::Entry entry =
      Backlog::Entry::Of(outgoing, options_.timeout, clock_.Now(), std::move(done));
  if (backlog.Enter(entry)) SendFrom(backlog, std::move(entry));
}

void GrpcSender::SendFrom(Backlog& backlog, Backlog::Entry entry) {
  const TimePoint sent = clock_.Now();
  const Duration left =
      entry.deadline == kNever ? client::kNoTimeout : std::max(entry.deadline - sent, Duration{1});
  SendCall(entry.outgoing, left,
           [this, &backlog, sent, done = std::move(entry.done)](Outcome outcome) mutable {
             outcome.sent = sent;
             // The last access to this object.
             backlog.End(outcome, std::move(done),
                         [&](Backlog::Entry next) { SendFrom(backlog, std::move(next)); });
           });
}

std::shared_ptr<client::PendingCall> GrpcSender::SendCall(const Outgoing& outgoing,
                                                          Duration timeout, Done done) {
  const Prepared& prepared = prepared_[outgoing.item->index];
  if (prepared.stream != nullptr) return SendStream(outgoing, prepared.stream, std::move(done));
  const Item& item = *outgoing.item;
  if (!options_.slots.empty()) {
    return SendShared(*options_.slots[item.index], outgoing, timeout, std::move(done));
  }
  client::Caller& client = *clients_[outgoing.caller % clients_.size()];
  return client.NormalizeAsync(
      *prepared.request, timeout,
      [this, &item, expectation = ExpectationFor(expectations_, outgoing),
       done = std::move(done)](const absl::StatusOr<client::NormalizeResponse>& response) mutable {
        std::move(done)(ToOutcome(response, item, expectation, clock_.Now()));
      });
}

std::shared_ptr<client::PendingCall> GrpcSender::SendShared(SharedSlots& slots,
                                                            const Outgoing& outgoing,
                                                            Duration timeout, Done done) {
  // A slot is free: the backlogs admit no more calls than there are slots.
  const std::size_t slot = slots.Take().value();
  const Item& item = *outgoing.item;
  client::Caller& client = *clients_[outgoing.caller % clients_.size()];
  return client.NormalizeAsync(
      slots.request(slot), timeout,
      [this, &slots, slot, &item, expectation = ExpectationFor(expectations_, outgoing),
       done = std::move(done)](const absl::StatusOr<client::NormalizeResponse>& response) mutable {
        Outcome outcome = ToOutcome(response, item, nullptr, clock_.Now());
        if (expectation != nullptr && response.ok() &&
            response->version() == expectation->version) {
          std::vector<client::TensorSpec> specs;
          for (const auto& output : response->outputs()) specs.push_back(output.spec());
          const absl::StatusOr<std::vector<client::Tensor>> copies =
              slots.ReadOutputs(slot, *response);
          if (copies.ok()) {
            VerifyCopies(item, *expectation, specs, copies, outcome);
          } else {
            SetError(copies.status(), outcome);
          }
        }
        slots.Give(slot, response.ok());
        std::move(done)(outcome);
      });
}

std::shared_ptr<client::PendingCall> GrpcSender::SendStream(
    const Outgoing& outgoing, std::shared_ptr<const client::StreamedTensor> tensor, Done done) {
  const Item& item = *outgoing.item;
  client::Caller& client = *clients_[outgoing.caller % clients_.size()];
  // shared: with both functions.
  auto reply = std::make_shared<StreamedReply>();
  reply->expectation = ExpectationFor(expectations_, outgoing);
  return client.NormalizeStreamAsync(
      std::move(tensor),
      [this, reply](absl::Span<const std::byte> bytes) {
        if (!reply->first_bytes) reply->first_bytes = clock_.Now();
        if (reply->expectation == nullptr) return;
        reply->bytes.insert(reply->bytes.end(), bytes.begin(), bytes.end());
      },
      [this, &item, reply,
       done = std::move(done)](const absl::StatusOr<client::StreamResult>& result) mutable {
        std::move(done)(ToOutcome(result, item, *reply, clock_.Now()));
      });
}

void GrpcSender::SendAndCancel(const Outgoing& outgoing, Done done) {
  // shared: the call may end, and drop the alarm, before the alarm is set.
  auto alarm = std::make_shared<grpc::Alarm>();
  Outgoing unverified = outgoing;
  unverified.verify = false;
  const auto call = SendCall(unverified, outgoing.item->entry.timeout.value_or(options_.timeout),
                             [alarm, done = std::move(done)](const Outcome& outcome) mutable {
                               alarm.reset();  // The alarm holds the call, which holds the alarm.
                               Outcome told = outcome;
                               told.cancelled = told.code == absl::StatusCode::kCancelled;
                               std::move(done)(told);
                             });
  alarm->Set(std::chrono::system_clock::now() + *outgoing.cancel_after, [call](bool due) {
    if (due) call->Cancel();
  });
}

}  // namespace normd::load
