#include "server/net/http2_opening.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace normd {
namespace {

using H2State = Http2Opening::State;

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frame(int type, int flags, std::size_t size) {
  std::string frame;
  for (const std::size_t byte : {size >> 16, size >> 8, size, std::size_t(type), std::size_t(flags),
                                 std::size_t{0}, std::size_t{0}, std::size_t{0}, std::size_t{0}}) {
    frame.push_back(static_cast<char>(byte & 0xff));
  }
  return frame + std::string(size, 'x');
}

const std::string kSettings = Frame(4, 0, 6);
const std::string kAckFrame = Frame(4, 1, 0);

struct Outcome {
  H2State state;
  std::string taken;
};

// Gives `bytes` as a socket would: at each step up to `step` more are there, and what was not taken
// is given again.
Outcome Feed(const std::string& bytes, std::size_t step, Http2OpeningLimits limits = {}) {
  Http2Opening opening(limits);
  std::size_t taken = 0;
  for (std::size_t there = 0; there < bytes.size();) {
    there = std::min(bytes.size(), there + step);
    taken += opening.Take(absl::string_view(bytes).substr(taken, there - taken));
    EXPECT_LE(taken, there);
  }
  return {opening.state(), bytes.substr(0, taken)};
}

TEST(Http2OpeningTest, LeavesTheAcknowledgementHoweverBytesCome) {
  const std::string before = kPreface + kSettings + Frame(8, 0, 4) + Frame(1, 4, 100) +
                             Frame(0, 1, 16384) + Frame(0, 0, 0) + Frame(6, 0, 8);
  const std::string after = kAckFrame + Frame(1, 4, 50);
  for (std::size_t step = 1; step < 100; ++step) {
    const Outcome outcome = Feed(before + after, step);
    EXPECT_EQ(outcome.state, H2State::kAcknowledged) << step;
    EXPECT_EQ(outcome.taken, before) << step;
  }
  EXPECT_EQ(Feed(before + after, 1 << 20).taken, before);
}

TEST(Http2OpeningTest, WaitsForTheAcknowledgement) {
  for (const std::string& bytes :
       {kPreface + kSettings, kPreface + kSettings + kAckFrame.substr(0, 8),
        kPreface + kSettings + Frame(1, 4, 10) + Frame(0, 0, 10)}) {
    EXPECT_EQ(Feed(bytes, 7).state, H2State::kSettings);
  }
  EXPECT_EQ(Feed(kPreface.substr(0, 23), 5).state, H2State::kPreface);
}

TEST(Http2OpeningTest, TakesAllThatAClientMaySendUnasked) {
  std::string bytes = kPreface + kSettings;
  for (int call = 0; call < 100; ++call) bytes += Frame(1, 4, 200);
  for (int i = 0; i < 4; ++i) bytes += Frame(0, 0, 16383);
  EXPECT_EQ(Feed(bytes + kAckFrame, 4096).state, H2State::kAcknowledged);
}

TEST(Http2OpeningTest, RefusesWhatExceedsALimit) {
  Http2OpeningLimits limits;
  limits.max_calls = 5;
  limits.max_header_bytes = 1000;
  limits.max_bytes = 5000;
  limits.max_frames = 20;
  const auto times = [](int count, const std::string& frame) {
    std::string bytes = kPreface + kSettings;
    for (int i = 0; i < count; ++i) bytes += frame;
    return bytes;
  };
  EXPECT_EQ(Feed(times(5, Frame(1, 4, 10)), 9, limits).state, H2State::kSettings);
  EXPECT_EQ(Feed(times(6, Frame(1, 4, 10)), 9, limits).state, H2State::kViolation);
  EXPECT_EQ(Feed(times(3, Frame(9, 0, 400)), 9, limits).state, H2State::kViolation);
  EXPECT_EQ(Feed(times(3, Frame(0, 0, 2000)), 9, limits).state, H2State::kViolation);
  EXPECT_EQ(Feed(times(19, Frame(6, 0, 8)), 9, limits).state, H2State::kSettings);
  EXPECT_EQ(Feed(times(20, Frame(6, 0, 8)), 9, limits).state, H2State::kViolation);
}

TEST(Http2OpeningTest, TellsOtherProtocolsApart) {
  for (const char* http1 : {"GET / HTTP/1.1\r\n", "POST /x HTTP/1.1\r\n", "PUT / HTTP/1.0\r\n",
                            "PRI * HTTP/1.1\r\n\r\n", "OPTIONS * HTTP/1.1\r\n"}) {
    EXPECT_EQ(Feed(http1, 1 << 10).state, H2State::kHttp1) << http1;
  }
  EXPECT_EQ(Feed("\x16\x03\x01\x02", 4).state, H2State::kTls);
  EXPECT_EQ(Feed(std::string(100, '\0'), 100).state, H2State::kViolation);
  EXPECT_EQ(Feed(kPreface + kAckFrame, 100).state, H2State::kViolation);
  EXPECT_EQ(Feed(kPreface + Frame(1, 4, 10), 100).state, H2State::kViolation);
  EXPECT_EQ(Feed(kPreface + Frame(4, 0, 16385), 100).state, H2State::kViolation);
}

TEST(Http2OpeningTest, NeverTakesMoreThanItWasGivenOrGoesOnAfterTheEnd) {
  std::mt19937 random(20261122);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = kPreface + kSettings;
    while (bytes.size() < 400) {
      bytes +=
          Frame(static_cast<int>(random() % 12), static_cast<int>(random() % 8), random() % 60);
    }
    bytes[random() % bytes.size()] = static_cast<char>(random());
    const Outcome whole = Feed(bytes, 1 << 20);
    const Outcome parts = Feed(bytes, 1 + random() % 40);
    EXPECT_EQ(whole.state, parts.state);
    if (whole.state == H2State::kAcknowledged) {
      EXPECT_EQ(whole.taken, parts.taken);
    }
  }
}

TEST(Http2OpeningTest, SettingsAreAFrameOfTwoValues) {
  const std::string frame = Http2Settings(8, 8192);
  EXPECT_EQ(frame, std::string("\0\0\x0c\x04\0\0\0\0\0"
                               "\0\x03\0\0\0\x08"
                               "\0\x06\0\0\x20\0",
                               21));
}

}  // namespace
}  // namespace normd
