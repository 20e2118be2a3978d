#include "client/load/measurement.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace normd::load {

std::string CodeName(std::size_t code) {
  const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
  return name.empty() ? absl::StrCat("CODE_", code) : name;
}

void ItemMeasurement::Merge(const ItemMeasurement& other) {
  response_time.Merge(other.response_time);
  first_bytes.Merge(other.first_bytes);
  errors += other.errors;
  sent_bytes += other.sent_bytes;
  received_bytes += other.received_bytes;
}

void Measurement::Record(const Item& item, const SendTimes& times, const Outcome& outcome) {
  last_received = std::max(last_received, outcome.received);
  if (outcome.cancelled) {
    ++cancelled;
    return;
  }
  if (item.index >= items.size()) items.resize(item.index + 1);
  ItemMeasurement& of_item = items[item.index];
  const auto code = std::min(static_cast<std::size_t>(outcome.code), kStatusCodes - 1);
  ++codes[code];
  const std::int64_t bytes = item.input_bytes();
  sent_bytes += bytes;
  of_item.sent_bytes += bytes;
  if (outcome.code != absl::StatusCode::kOk) {
    ++of_item.errors;
    if (first_message[code].empty()) first_message[code] = outcome.message;
    return;
  }
  response_time.Record(outcome.received - times.intended);
  of_item.response_time.Record(outcome.received - times.intended);
  if (outcome.first_bytes) of_item.first_bytes.Record(*outcome.first_bytes - times.intended);
  const TimePoint sent = outcome.sent.value_or(times.sent);
  service_time.Record(outcome.received - sent);
  send_lag.Record(sent - times.intended);
  received_bytes += outcome.output_bytes;
  of_item.received_bytes += outcome.output_bytes;
  for (std::size_t i = 0; i < kServerStages; ++i) stage_sum[i] += outcome.stages[i];
  if (outcome.batch_requests > 0) {
    ++in_batches;
    batches += 1.0 / static_cast<double>(outcome.batch_requests);
    max_batch_requests = std::max(max_batch_requests, outcome.batch_requests);
  }
  if (outcome.verdict != Verdict::kUnchecked) ++verified;
  if (outcome.verdict == Verdict::kWrong) {
    if (wrong++ == 0) first_wrong = outcome.message;
  }
}

void Measurement::Merge(const Measurement& other) {
  response_time.Merge(other.response_time);
  service_time.Merge(other.service_time);
  send_lag.Merge(other.send_lag);
  for (std::size_t i = 0; i < kStatusCodes; ++i) {
    codes[i] += other.codes[i];
    if (first_message[i].empty()) first_message[i] = other.first_message[i];
  }
  warmup_requests += other.warmup_requests;
  cancelled += other.cancelled;
  if (other.items.size() > items.size()) items.resize(other.items.size());
  for (std::size_t i = 0; i < other.items.size(); ++i) items[i].Merge(other.items[i]);
  sent_bytes += other.sent_bytes;
  received_bytes += other.received_bytes;
  for (std::size_t i = 0; i < kServerStages; ++i) stage_sum[i] += other.stage_sum[i];
  batches += other.batches;
  in_batches += other.in_batches;
  max_batch_requests = std::max(max_batch_requests, other.max_batch_requests);
  verified += other.verified;
  wrong += other.wrong;
  if (first_wrong.empty()) first_wrong = other.first_wrong;
  last_received = std::max(last_received, other.last_received);
}

std::int64_t Measurement::requests() const {
  return std::accumulate(codes.begin(), codes.end(), std::int64_t{0});
}

double Measurement::error_share() const {
  const std::int64_t all = requests();
  return all == 0 ? 0 : static_cast<double>(errors()) / static_cast<double>(all);
}

Duration Measurement::MeanStage(std::size_t stage) const {
  return ok() == 0 ? Duration{0} : stage_sum[stage] / ok();
}

double Measurement::MeanBatchRequests() const {
  return batches == 0 ? 0 : static_cast<double>(in_batches) / batches;
}

}  // namespace normd::load
