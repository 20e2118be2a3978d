#include "server/net/undelivered.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "server/net/stream_count.h"

namespace normd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::int64_t kMebibyte = 1 << 20;

// A connection and the time.
class Traffic {
 public:
  explicit Traffic(TrafficLimits limits) : limits_(limits), undelivered_(TimePoint(seconds(100))) {
    sample_.at = TimePoint(seconds(100));
  }

  TrafficVerdict After(Duration passed, std::int64_t received, std::int64_t delivered = 0,
                       std::int64_t messages = 0) {
    sample_.at += passed;
    sample_.received_bytes += received;
    sample_.delivered_bytes += delivered;
    sample_.delivered_messages += messages;
    return undelivered_.Add(sample_, limits_);
  }
  // Tenths of a second in which nothing comes, until the verdict or `most` has passed.
  Duration SilenceUntilStalled(Duration most) {
    for (Duration passed = milliseconds(100); passed <= most; passed += milliseconds(100)) {
      if (After(milliseconds(100), 0) == TrafficVerdict::kStalled) return passed;
    }
    return Duration::max();
  }

  TrafficSample& sample() { return sample_; }
  const Undelivered& undelivered() const { return undelivered_; }

 private:
  const TrafficLimits limits_;
  TrafficSample sample_;
  Undelivered undelivered_;
};

TrafficLimits Limits() {
  TrafficLimits limits;
  limits.connection_bytes = 100 * kMebibyte;
  limits.message_timeout = seconds(30);
  limits.min_bytes_per_second = 4096;
  return limits;
}

TEST(UndeliveredTest, CountsAHalfSentMessage) {
  Traffic traffic(Limits());
  traffic.After(milliseconds(100), 50 * kMebibyte);
  EXPECT_GT(traffic.undelivered().bytes(), 49 * kMebibyte);
  EXPECT_LE(traffic.undelivered().bytes(), 50 * kMebibyte);
  traffic.After(milliseconds(100), kMebibyte, 51 * kMebibyte, 1);
  EXPECT_EQ(traffic.undelivered().bytes(), 0);
}

TEST(UndeliveredTest, EndsAHalfSentMessageWithinTwiceTheTimeout) {
  for (const std::int64_t bytes : {200 << 10, 1 << 20, 90 << 20}) {
    Traffic traffic(Limits());
    EXPECT_EQ(traffic.After(milliseconds(100), bytes), TrafficVerdict::kFine);
    const Duration passed = traffic.SilenceUntilStalled(seconds(100));
    EXPECT_GE(passed, seconds(29)) << bytes;
    EXPECT_LE(passed, seconds(60)) << bytes;
  }
}

TEST(UndeliveredTest, KeepsASlowUploadAboveTheLeastRate) {
  for (const std::int64_t rate : {4200, 10000, 100000}) {
    Traffic traffic(Limits());
    for (int tenth = 0; tenth < 36000; ++tenth) {
      if (rate * tenth / 10 > 99 * kMebibyte) break;
      ASSERT_EQ(traffic.After(milliseconds(100), rate / 10 + 1), TrafficVerdict::kFine) << rate;
    }
  }
}

TEST(UndeliveredTest, EndsAnUploadBelowTheLeastRate) {
  Traffic traffic(Limits());
  traffic.After(milliseconds(100), kMebibyte);
  TrafficVerdict verdict = TrafficVerdict::kFine;
  for (int tenth = 0; tenth < 700 && verdict == TrafficVerdict::kFine; ++tenth) {
    verdict = traffic.After(milliseconds(100), 100);
  }
  EXPECT_EQ(verdict, TrafficVerdict::kStalled);
}

TEST(UndeliveredTest, StreamsAreNotStalled) {
  Traffic traffic(Limits());
  traffic.sample().open_streams = 1;
  traffic.After(milliseconds(100), kMebibyte);
  EXPECT_EQ(traffic.SilenceUntilStalled(seconds(300)), Duration::max());
  traffic.sample().open_streams = 0;
  EXPECT_LE(traffic.SilenceUntilStalled(seconds(300)), seconds(60));
}

TEST(UndeliveredTest, EndsWhatHoldsMoreThanItsCallsCanNeed) {
  Traffic traffic(Limits());
  EXPECT_EQ(traffic.After(milliseconds(10), 90 * kMebibyte), TrafficVerdict::kFine);
  EXPECT_EQ(traffic.After(milliseconds(10), 20 * kMebibyte), TrafficVerdict::kOversize);
}

// Honest traffic of every kind: after millions of messages nothing is left to be held against it.
TEST(UndeliveredTest, NeverGrowsOnAnHonestConnection) {
  std::mt19937 random(20261122);
  for (const std::int64_t message : {0, 20, 1024, 65536, 1 << 20, 32 << 20}) {
    for (const std::int64_t metadata : {30, 200, 8192}) {
      Traffic traffic(Limits());
      for (int step = 0; step < 20000; ++step) {
        const std::int64_t calls = static_cast<std::int64_t>(random() % 40);
        std::int64_t received = 0;
        std::int64_t bytes = 0;
        for (std::int64_t call = 0; call < calls; ++call) {
          received += message + metadata + message / 16384 * 9 + 40;
          bytes += message;
        }
        // Some of it is on its way when the sample is taken.
        const std::int64_t early = calls > 0 ? static_cast<std::int64_t>(random() % 300) : 0;
        ASSERT_NE(traffic.After(milliseconds(1 + random() % 200), received + early, bytes, calls),
                  TrafficVerdict::kStalled)
            << message << " " << metadata << " " << step;
        traffic.sample().received_bytes -= early;
      }
      EXPECT_LE(traffic.undelivered().bytes(), Undelivered::kNoticeableBytes)
          << message << " " << metadata;
    }
  }
}

// The same over TLS, whatever the size of its records.
TEST(UndeliveredTest, NeverGrowsOnAnHonestConnectionWithTls) {
  for (const std::int64_t record : {512, 1200, 4096, 16384}) {
    for (const std::int64_t message : {0, 20, 1024, 65536, 1 << 20, 32 << 20}) {
      TrafficLimits limits = Limits();
      limits.frames_share = kTlsFramesShare;
      Traffic traffic(limits);
      for (int step = 0; step < 5000; ++step) {
        const std::int64_t sent = message + 200 + message / 16384 * 9 + 40;
        const std::int64_t received = sent + (sent / record + 3) * 22;
        ASSERT_NE(traffic.After(milliseconds(50), 8 * received, 8 * message, 8),
                  TrafficVerdict::kStalled)
            << record << " " << message;
      }
      EXPECT_LE(traffic.undelivered().bytes(), Undelivered::kNoticeableBytes)
          << record << " " << message;
    }
  }
}

TEST(UndeliveredTest, TalksALittleForEver) {
  Traffic traffic(Limits());
  for (int second = 0; second < 1000000; ++second) {  // Pings, and their acknowledgements.
    ASSERT_EQ(traffic.After(seconds(1), 60), TrafficVerdict::kFine);
  }
  EXPECT_LE(traffic.undelivered().bytes(), Undelivered::kNoticeableBytes);
}

TEST(UndeliveredTest, TalksMoreAsLongAsSomethingIsDelivered) {
  Traffic traffic(Limits());
  for (int tenth = 0; tenth < 1000000; ++tenth) {  // Health checks, and window updates beside them.
    ASSERT_EQ(traffic.After(milliseconds(100), 450, 6, tenth % 10 == 0), TrafficVerdict::kFine);
  }
  EXPECT_LE(traffic.undelivered().bytes(), Undelivered::kNoticeableBytes);
}

// A half-sent message is not held for ever, however slowly it comes and however it is spread over
// time: below the least rate the connection ends before it has sent much.
TEST(UndeliveredTest, EndsADripOfAnyRate) {
  for (const std::int64_t least_rate : {256, 4096, 4 << 20}) {
    TrafficLimits limits = Limits();
    limits.min_bytes_per_second = least_rate;
    for (const std::int64_t period_ms : {50, 100, 1000, 7000}) {
      for (std::int64_t rate = 100; rate < least_rate; rate = rate * 3 / 2) {
        Traffic traffic(limits);
        const std::int64_t step = rate * period_ms / 1000 + 1;
        const std::int64_t most = Undelivered::kAllowanceBytes + Undelivered::kNoticeableBytes;
        std::int64_t sent = 0;
        std::int64_t passed_ms = 0;
        while (traffic.After(milliseconds(period_ms), step) == TrafficVerdict::kFine) {
          sent += step;
          passed_ms += period_ms;
          // Beside what pings may take, and what comes in the time until the verdict.
          ASSERT_LE(sent, most + most / 16 + 85 * passed_ms / 1000 + 2 * 31 * rate + 2 * step)
              << rate << " of " << least_rate << " every " << period_ms << " ms";
        }
      }
    }
  }
}

TEST(UndeliveredTest, AnHourOfSilenceIsNotSavedUp) {
  Traffic traffic(Limits());
  traffic.After(std::chrono::hours(1), 0);
  traffic.After(milliseconds(10), 10 * kMebibyte);
  EXPECT_GT(traffic.undelivered().bytes(), 9 * kMebibyte);
}

TEST(UndeliveredTest, OldBytesHaveBeenThereForASecond) {
  Traffic traffic(Limits());
  traffic.After(milliseconds(100), 40 * kMebibyte);
  EXPECT_EQ(traffic.undelivered().old_bytes(), 0);
  for (int tenth = 0; tenth < 25; ++tenth) traffic.After(milliseconds(100), 0);
  EXPECT_GT(traffic.undelivered().old_bytes(), 39 * kMebibyte);
  // A fast upload has nothing old although something is always there.
  Traffic busy(Limits());
  for (int tenth = 0; tenth < 100; ++tenth) {
    busy.After(milliseconds(50), 8 * kMebibyte);
    busy.After(milliseconds(50), 0, 8 * kMebibyte, 1);
    EXPECT_EQ(busy.undelivered().old_bytes(), 0);
  }
}

TEST(UndeliveredTest, IsCappedByWhatIsKnownOtherwise) {
  Traffic traffic(Limits());
  traffic.After(milliseconds(100), 50 * kMebibyte);
  Undelivered undelivered = traffic.undelivered();
  undelivered.Cap(60 * kMebibyte);
  EXPECT_GT(undelivered.bytes(), 49 * kMebibyte);
  undelivered.Cap(2 * kMebibyte);
  EXPECT_EQ(undelivered.bytes(), 2 * kMebibyte);
}

// Any order of beginnings, messages, ends and looks, with some of them within a look. A handler
// hears of its call's end before the look after the next.
TEST(WaitingStreamsTest, NeverOverlooksAStreamThatWaits) {
  std::mt19937 random(20261126);
  for (int round = 0; round < 2000; ++round) {
    WaitingStreams waiting;
    StreamCounts streams;
    std::int64_t waits = 0;
    std::int64_t inside =
        0;  // By the handlers' count: with those whose end they have not heard of.
    std::int64_t not_heard = 0;
    const auto anything = [&] {
      const std::uint64_t what = random() % 4;
      if (what == 0) {
        ++streams.open;
        ++waits;
      } else if (what == 1 && waits > 0) {
        --waits;
        ++inside;
      } else if (what == 2 && waits > 0) {
        --waits;
        --streams.open;
        ++streams.ended;
      } else if (what == 3 && inside > not_heard) {
        ++not_heard;
        --streams.open;
        ++streams.ended;
      }
    };
    TimePoint now{};
    std::int64_t received = 0;
    for (int look = 0; look < 20; ++look) {
      for (std::uint64_t events = random() % 6; events > 0; --events) anything();
      const std::int64_t counted = inside;
      for (std::uint64_t events = random() % 3; events > 0; --events) anything();
      now += WaitingStreams::kTimeBetween;
      received += 1000;
      ASSERT_TRUE(waiting.IsDue(now));
      const std::int64_t most = waiting.MostHeld(counted, streams, received, now);
      ASSERT_TRUE(waits == 0 || most > received) << round << " " << look;
      inside -= not_heard;
      not_heard = 0;
    }
  }
}

TEST(WaitingStreamsTest, APauseShowsThatNothingWaits) {
  WaitingStreams waiting;
  const TimePoint begin{};
  const StreamCounts streams{1, 7};
  EXPECT_GT(waiting.MostHeld(1, streams, 50 * kMebibyte, begin), 50 * kMebibyte)
      << "may be another's place";
  EXPECT_FALSE(waiting.IsDue(begin));
  EXPECT_EQ(waiting.MostHeld(1, streams, 50 * kMebibyte + 10, begin + seconds(1)), 10);
  EXPECT_EQ(waiting.MostHeld(0, {0, 8}, 51 * kMebibyte + 10, begin + seconds(2)), kMebibyte);
  EXPECT_GT(waiting.MostHeld(0, {1, 8}, 51 * kMebibyte + 10, begin + seconds(3)), 50 * kMebibyte);
}

}  // namespace
}  // namespace normd
