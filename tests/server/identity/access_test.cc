#include "server/identity/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/identity/rate_limit.h"
#include "tests/server/identity/identity_files.h"
#include "tests/support/fake_clock.h"
#include "tests/support/metric_value.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr char kPolicy[] = R"(role { name: "user" infer: "*" }
identity { name: "by_token" role: "user" token: "t" }
identity { name: "by_uri" role: "user" spiffe: "spiffe://x/a" }
identity { name: "by_dns" role: "user" dns: "a.example.org" }
identity { name: "by_socket" role: "user" unix_socket: true }
)";
constexpr char kAnonymous[] = "identity { name: \"anyone\" role: \"user\" anonymous: true }\n";

class AccessTest : public ::testing::Test {
 protected:
  AccessTest() {
    folder_.Write("policy", kPolicy);
    folder_.Write("tokens", TokenLine("t", TokenOf('t')) + TokenLine("unused", TokenOf('u')));
  }

  absl::StatusOr<std::unique_ptr<Access>> Create() {
    return Access::Create({folder_.File("policy"), folder_.File("tokens")}, callers_, metrics_);
  }
  static std::string WhoIs(const Access& access, const PeerCredentials& credentials) {
    const auto principal = access.Recognise(credentials);
    if (principal.ok()) return (*principal)->identity.name;
    EXPECT_EQ(principal.status().code(), absl::StatusCode::kUnauthenticated);
    return "nobody";
  }
  static PeerCredentials WithToken(const std::string& authorization) {
    PeerCredentials credentials;
    credentials.authorization = authorization;
    return credentials;
  }

  SecretFolder folder_;
  Callers callers_;
  Metrics metrics_;
};

struct Sign {
  std::string identity;
  std::function<void(PeerCredentials&)> present;
};

// All that a call may bring that somebody is recognised by, and beside each what is near to it, in
// the order in which they count.
std::vector<std::pair<Sign, Sign>> Signs() {
  static const std::string right = BearerOf('t');
  static const std::string wrong = BearerOf('x');
  return {{{"by_token", [](auto& c) { c.authorization = right; }},
           {"nobody", [](auto& c) { c.authorization = wrong; }}},
          {{"by_uri",
            [](auto& c) {
              c.uris = {"spiffe://other", "spiffe://x/a"};
            }},
           {"",
            [](auto& c) {
              c.uris = {"spiffe://x/a/b", ""};
            }}},
          {{"by_dns",
            [](auto& c) {
              c.dns_names = {"b.example.org", "A.example.org"};
            }},
           {"", [](auto& c) { c.dns_names = {"example.org"}; }}},
          {{"by_socket", [](auto& c) { c.own_user = true; }},
           {"", [](auto& c) { c.own_user = false; }}}};
}

// Every combination of right, near and missing signs, with and without an anonymous identity.
TEST_F(AccessTest, TheFirstRightSignCountsAndAWrongTokenIsNobodys) {
  const auto signs = Signs();
  for (const bool anonymous : {false, true}) {
    folder_.Write("policy", absl::StrCat(kPolicy, anonymous ? kAnonymous : ""));
    const auto access = Create();
    ASSERT_TRUE(access.ok()) << access.status();
    for (int combination = 0; combination < 81; ++combination) {
      PeerCredentials credentials;
      std::string expected = anonymous ? "anyone" : "nobody";
      bool decided = false;
      int rest = combination;
      for (const auto& [good, near] : signs) {
        const int kind = rest % 3;  // Missing, right, near.
        rest /= 3;
        if (kind == 0) continue;
        const Sign& sign = kind == 1 ? good : near;
        sign.present(credentials);
        if (decided || sign.identity.empty()) continue;
        expected = sign.identity;
        decided = true;
      }
      EXPECT_EQ(WhoIs(**access, credentials), expected) << combination << " " << anonymous;
    }
  }
}

TEST_F(AccessTest, ATokenThatNoIdentityHasIsNobodysEvenWhereAnyoneMayCall) {
  folder_.Write("policy", absl::StrCat(kPolicy, kAnonymous));
  const auto access = Create();
  ASSERT_TRUE(access.ok());
  EXPECT_EQ((*access)->state()->UnusedTokens(), std::vector<std::string>{"unused"});
  for (const std::string& authorization :
       {BearerOf('u'), BearerOf('z'), std::string(), std::string("Bearer"),
        std::string("Basic dXNlcjpwYXNz"), BearerOf('t') + "x",
        "Bearer " + std::string(4000, 't')}) {
    EXPECT_EQ(WhoIs(**access, WithToken(authorization)), "nobody") << authorization;
  }
  EXPECT_EQ(WhoIs(**access, WithToken(BearerOf('t'))), "by_token");
}

TEST_F(AccessTest, EveryNobodyIsToldTheSame) {
  const auto access = Create();
  ASSERT_TRUE(access.ok());
  const absl::Status without = (*access)->Recognise({}).status();
  EXPECT_EQ((*access)->Recognise(WithToken(BearerOf('u'))).status(), without);
  EXPECT_EQ((*access)->Recognise(WithToken("x")).status(), without);
  PeerCredentials unknown;
  unknown.uris = {"spiffe://elsewhere"};
  EXPECT_EQ((*access)->Recognise(unknown).status(), without);
}

TEST_F(AccessTest, AStartFailsWithTheFileThatIsWrong) {
  folder_.Write("policy", "identity { nonsense: 1 }");
  EXPECT_THAT(std::string(Create().status().message()), HasSubstr("policy: line 1, column"));
  folder_.Write("policy", kPolicy);
  folder_.Write("tokens", "one\n");
  EXPECT_THAT(std::string(Create().status().message()), HasSubstr("tokens: line 1: 1 words"));
  folder_.Write("tokens", TokenLine("t", TokenOf('t')), 0644);
  EXPECT_THAT(std::string(Create().status().message()), HasSubstr("tokens: mode 0644"));
  std::filesystem::remove(folder_.File("tokens"));
  EXPECT_THAT(std::string(Create().status().message()), HasSubstr("tokens"));
  std::filesystem::remove(folder_.File("policy"));
  EXPECT_THAT(std::string(Create().status().message()), HasSubstr("policy"));
}

TEST_F(AccessTest, AnExchangedFileHoldsFromTheNextCheckOn) {
  const auto access = Create();
  ASSERT_TRUE(access.ok());
  folder_.Write("tokens", TokenLine("t", TokenOf('n')));
  EXPECT_EQ(WhoIs(**access, WithToken(BearerOf('t'))), "by_token") << "until it is looked at";
  EXPECT_TRUE((*access)->CheckFiles().ok());
  EXPECT_EQ(WhoIs(**access, WithToken(BearerOf('t'))), "nobody");
  EXPECT_EQ(WhoIs(**access, WithToken(BearerOf('n'))), "by_token");
  folder_.Write("policy", absl::StrCat(kPolicy, kAnonymous));
  EXPECT_TRUE((*access)->CheckFiles().ok());
  EXPECT_EQ(WhoIs(**access, {}), "anyone");
}

// Written in place, of the same size, within one tick of the file system's clock.
TEST_F(AccessTest, AFileThatIsWrittenInPlaceAtOnceIsNoticed) {
  const auto access = Create();
  ASSERT_TRUE(access.ok());
  for (const char letter : {'a', 'b', 'c', 'd'}) {
    FILE* const file = fopen(folder_.File("tokens").c_str(), "r+");
    fputs(TokenLine("t", TokenOf(letter)).c_str(), file);
    fclose(file);
    EXPECT_TRUE((*access)->CheckFiles().ok());
    EXPECT_EQ(WhoIs(**access, WithToken(BearerOf(letter))), "by_token") << letter;
  }
}

TEST_F(AccessTest, WhatIsWrongLeavesTheOldStateUntilItIsMended) {
  const auto access = Create();
  ASSERT_TRUE(access.ok());
  const std::string tokens = TokenLine("t", TokenOf('t'));
  const std::vector<std::pair<std::string, std::function<void()>>> faults = {
      {"unknown field", [&] { folder_.Write("policy", absl::StrCat(kPolicy, "x: 1")); }},
      {"half a file", [&] { folder_.Write("policy", std::string(kPolicy, 70)); }},
      {"empty", [&] { folder_.Write("policy", ""); }},
      {"gone", [&] { std::filesystem::remove(folder_.File("policy")); }},
      {"everybody's to write", [&] { folder_.Write("policy", kPolicy, 0666); }},
      {"tokens wrong", [&] { folder_.Write("tokens", tokens + "x"); }},
      {"tokens gone", [&] { std::filesystem::remove(folder_.File("tokens")); }},
      {"tokens everybody's", [&] { folder_.Write("tokens", tokens, 0604); }},
  };
  for (const auto& [name, fault] : faults) {
    fault();
    EXPECT_FALSE((*access)->CheckFiles().ok()) << name;
    EXPECT_EQ(WhoIs(**access, WithToken(BearerOf('t'))), "by_token") << name;
    EXPECT_EQ(WhoIs(**access, {}), "nobody") << name;
    EXPECT_FALSE((*access)->CheckFiles().ok()) << name << ", still";
    folder_.Write("policy", kPolicy);
    folder_.Write("tokens", tokens);
    EXPECT_TRUE((*access)->CheckFiles().ok()) << name;
    EXPECT_EQ(WhoIs(**access, WithToken(BearerOf('t'))), "by_token") << name;
  }
  EXPECT_EQ(MetricValue(metrics_, families::kPolicyReloads, {"refused"}),
            static_cast<std::int64_t>(faults.size()));
  EXPECT_EQ(MetricValue(metrics_, families::kPolicyReloads, {"taken"}),
            1);  // With the first repair, one token of two went.
}

TEST_F(AccessTest, ACallKeepsThePolicyItCameUnderAndAnIdentityItsAccount) {
  const auto access = Create();
  ASSERT_TRUE(access.ok());
  const auto before = *(*access)->Recognise(WithToken(BearerOf('t')));
  folder_.Write("policy", absl::StrCat(kAnonymous, kPolicy));
  ASSERT_TRUE((*access)->CheckFiles().ok());
  const auto after = *(*access)->Recognise(WithToken(BearerOf('t')));
  EXPECT_NE(before, after);
  EXPECT_EQ(before->identity.name, "by_token");
  EXPECT_EQ(before->account, after->account);
  EXPECT_NE(after->account->peer->id, 0U);
  EXPECT_NE((*(*access)->Recognise({}))->account, after->account);
}

// What a call sees is one policy or the other, whole, while files change under it.
TEST_F(AccessTest, CallsOnOtherThreadsMeetOneStateOrTheOther) {
  const auto access = Create();
  ASSERT_TRUE(access.ok());
  std::atomic<bool> ended{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!ended) {
        const std::string who = WhoIs(**access, WithToken(BearerOf('t')));
        EXPECT_TRUE(who == "by_token" || who == "renamed") << who;
      }
    });
  }
  const std::string renamed =
      "role { name: \"user\" infer: \"*\" } identity { name: \"renamed\" role: \"user\" token: "
      "\"t\" }";
  for (int i = 0; i < 50; ++i) {
    folder_.Write("policy", i % 2 == 0 ? renamed : kPolicy);
    EXPECT_TRUE((*access)->CheckFiles().ok());
  }
  ended = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(RateLimitTest, WithoutARateNothingIsEverRefused) {
  RateLimit limit;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(limit.Take({}, TimePoint()), Duration(0));
}

TEST(RateLimitTest, ABurstGoesAtOnceAndTheRestAtTheRate) {
  FakeClock clock;
  RateLimit limit;
  const Rate rate{10, 3};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limit.Take(rate, clock.Now()), Duration(0)) << i;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(limit.Take(rate, clock.Now()), milliseconds(100)) << "a refusal costs nothing";
  }
  clock.Advance(milliseconds(99));
  EXPECT_EQ(limit.Take(rate, clock.Now()), milliseconds(1));
  clock.Advance(milliseconds(1));
  EXPECT_EQ(limit.Take(rate, clock.Now()), Duration(0));
  EXPECT_EQ(limit.Take(rate, clock.Now()), milliseconds(100));
  clock.Advance(seconds(100));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limit.Take(rate, clock.Now()), Duration(0)) << i;
  EXPECT_NE(limit.Take(rate, clock.Now()), Duration(0)) << "a pause saves up no more than a burst";
}

// Against a bucket that is filled and emptied in floating point.
TEST(RateLimitTest, GivesInAnyWindowNoMoreThanTheBurstAndTheRate) {
  const unsigned seed = 20261122;
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const Rate rate{std::uniform_real_distribution<double>(0.5, 2000)(random),
                    static_cast<std::int64_t>(1 + random() % 20)};
    FakeClock clock;
    RateLimit limit;
    double bucket = static_cast<double>(rate.burst);
    for (int i = 0; i < 300; ++i) {
      const Duration wait = limit.Take(rate, clock.Now());
      // Rounding of a nanosecond at each call.
      const double slack = 1e-6 * rate.per_second;
      if (wait == Duration(0)) {
        ASSERT_GE(bucket, 1 - slack) << "seed " << seed << " round " << round;
        bucket -= 1;
      } else {
        ASSERT_LT(bucket, 1 + slack) << "seed " << seed << " round " << round;
      }
      // Half of the time as long as it was told to wait.
      const auto pause =
          wait > Duration(0) && random() % 2 == 0
              ? wait
              : Duration(static_cast<std::int64_t>(
                    std::uniform_real_distribution<double>(0, 2e9)(random) / rate.per_second));
      clock.Advance(pause);
      bucket = std::min(static_cast<double>(rate.burst),
                        bucket + rate.per_second * static_cast<double>(pause.count()) / 1e9);
    }
  }
}

TEST(RateLimitTest, AWaitThatIsKeptIsEnough) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const Rate rate{std::uniform_real_distribution<double>(0.01, 1e6)(random),
                    static_cast<std::int64_t>(1 + random() % 5)};
    FakeClock clock;
    RateLimit limit;
    while (limit.Take(rate, clock.Now()) == Duration(0)) {
    }
    clock.Advance(limit.Take(rate, clock.Now()));
    EXPECT_EQ(limit.Take(rate, clock.Now()), Duration(0)) << rate.per_second;
  }
}

TEST(RateLimitTest, TheLargestNumbersAreOnlyLarge) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  FakeClock clock;
  RateLimit limit;
  EXPECT_EQ(limit.Take({1e-300, 1}, clock.Now()), Duration(0));
  EXPECT_GT(limit.Take({1e-300, 1}, clock.Now()), std::chrono::hours(24 * 365));
  RateLimit wide;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(wide.Take({1e9, kMost}, clock.Now()), Duration(0));
  RateLimit slow;
  EXPECT_EQ(slow.Take({1e-300, kMost}, clock.Now()), Duration(0));
}

TEST(RateLimitTest, ThreadsTogetherGetTheBurstAndNoMore) {
  RateLimit limit;
  const TimePoint now{seconds(1)};
  std::atomic<int> taken{0};
  RunThreads(4, [&](int) {
    for (int k = 0; k < 1000; ++k) taken += limit.Take({1, 500}, now) == Duration(0) ? 1 : 0;
  });
  EXPECT_EQ(taken, 500);
}

}  // namespace
}  // namespace normd::testing
