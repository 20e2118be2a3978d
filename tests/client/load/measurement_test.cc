#include "client/load/measurement.h"

#include <gtest/gtest.h>

namespace normd::load {
namespace {

using std::chrono::milliseconds;

TimePoint AtMs(int ms) { return TimePoint(milliseconds(ms)); }

Item ItemOf(std::int64_t elements) {
  Item item;
  item.inputs = {
      client::RandomTensor(norm::DType::kFloat32, Shape::Create({elements}).value(), 0, 1, 1)
          .value()};
  return item;
}

TEST(MeasurementTest, ResponseTimeCountsFromTheIntendedSend) {
  Measurement m;
  Outcome outcome;
  outcome.received = AtMs(30);
  m.Record(ItemOf(4), {AtMs(10), AtMs(25)}, outcome);
  EXPECT_EQ(m.response_time.max(), milliseconds(20));
  EXPECT_EQ(m.service_time.max(), milliseconds(5));
  EXPECT_EQ(m.send_lag.max(), milliseconds(15));
  EXPECT_EQ(m.sent_bytes, 16);
  EXPECT_EQ(m.last_received, AtMs(30));
}

TEST(MeasurementTest, ErrorsAreCountedByCodeAndNotTimed) {
  Measurement m;
  Outcome refused;
  refused.code = absl::StatusCode::kResourceExhausted;
  refused.message = "queue: full";
  m.Record(ItemOf(1), {}, refused);
  refused.message = "another";
  m.Record(ItemOf(1), {}, refused);
  m.Record(ItemOf(1), {}, Outcome());
  EXPECT_EQ(m.codes[8], 2);
  EXPECT_EQ(m.first_message[8], "queue: full");
  EXPECT_EQ(m.ok(), 1);
  EXPECT_EQ(m.errors(), 2);
  EXPECT_DOUBLE_EQ(m.error_share(), 2.0 / 3);
  EXPECT_EQ(m.response_time.count(), 1);
}

TEST(MeasurementTest, CodesBeyondTheKnownAreCountedAndNotWrittenOutside) {
  Measurement m;
  Outcome strange;
  strange.code = static_cast<absl::StatusCode>(999);
  m.Record(ItemOf(1), {}, strange);
  EXPECT_EQ(m.errors(), 1);
}

TEST(MeasurementTest, BatchSizeIsThatOfBatchesAndNotOfRequests) {
  Measurement m;
  // One batch of 3 and one of 1: the mean over batches is 2, over requests 2.5.
  for (const int requests : {3, 3, 3, 1}) {
    Outcome outcome;
    outcome.batch_requests = requests;
    m.Record(ItemOf(1), {}, outcome);
  }
  EXPECT_DOUBLE_EQ(m.MeanBatchRequests(), 2);
  EXPECT_EQ(m.max_batch_requests, 3);
}

TEST(MeasurementTest, MergesEveryField) {
  Measurement a;
  Measurement b;
  Outcome right;
  right.received = AtMs(5);
  right.output_bytes = 8;
  right.stages[4] = milliseconds(2);
  right.batch_requests = 1;
  right.verdict = Verdict::kRight;
  a.Record(ItemOf(2), {AtMs(0), AtMs(0)}, right);
  Outcome wrong = right;
  wrong.received = AtMs(9);
  wrong.stages[4] = milliseconds(4);
  wrong.verdict = Verdict::kWrong;
  wrong.message = "element 0";
  b.Record(ItemOf(2), {AtMs(0), AtMs(0)}, wrong);
  Outcome failed;
  failed.code = absl::StatusCode::kCancelled;
  failed.message = "gone";
  b.Record(ItemOf(2), {AtMs(0), AtMs(0)}, failed);
  Outcome cancelled = failed;
  cancelled.cancelled = true;
  b.Record(ItemOf(2), {AtMs(0), AtMs(0)}, cancelled);
  b.warmup_requests = 7;

  a.Merge(b);
  EXPECT_EQ(a.requests(), 3);
  EXPECT_EQ(a.ok(), 2);
  EXPECT_EQ(a.first_message[1], "gone");
  EXPECT_EQ(a.sent_bytes, 24);
  EXPECT_EQ(a.received_bytes, 16);
  EXPECT_EQ(a.response_time.count(), 2);
  EXPECT_EQ(a.service_time.max(), milliseconds(9));
  EXPECT_EQ(a.send_lag.count(), 2);
  EXPECT_EQ(a.MeanStage(4), milliseconds(3));
  EXPECT_EQ(a.verified, 2);
  EXPECT_EQ(a.wrong, 1);
  EXPECT_EQ(a.first_wrong, "element 0");
  EXPECT_EQ(a.cancelled, 1);
  EXPECT_EQ(a.warmup_requests, 7);
  EXPECT_EQ(a.last_received, AtMs(9));
  EXPECT_DOUBLE_EQ(a.MeanBatchRequests(), 1);
}

TEST(MeasurementTest, KeepsTheKindsOfRequestsApart) {
  Measurement a;
  Measurement b;
  Item first = ItemOf(1);
  Item third = ItemOf(1);
  third.index = 2;
  Outcome outcome;
  outcome.received = AtMs(5);
  a.Record(first, {AtMs(0), AtMs(0)}, outcome);
  b.Record(third, {AtMs(2), AtMs(2)}, outcome);
  outcome.code = absl::StatusCode::kInternal;
  b.Record(third, {AtMs(2), AtMs(2)}, outcome);
  a.Merge(b);
  ASSERT_EQ(a.items.size(), 3u);
  EXPECT_EQ(a.items[0].response_time.max(), milliseconds(5));
  EXPECT_EQ(a.items[1].response_time.count(), 0);
  EXPECT_EQ(a.items[2].response_time.max(), milliseconds(3));
  EXPECT_EQ(a.items[2].errors, 1);
}

TEST(MeasurementTest, NamesCodes) {
  EXPECT_EQ(CodeName(0), "OK");
  EXPECT_EQ(CodeName(14), "UNAVAILABLE");
  EXPECT_EQ(CodeName(99), "CODE_99");
}

}  // namespace
}  // namespace normd::load
