#include "server/identity/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/identity/identity_files.h"
#include "tests/support/counting_metrics.h"

namespace normd::testing {
namespace {

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
    return Access::Create({folder_.Path("policy"), folder_.Path("tokens")}, callers_, metrics_);
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

  IdentityFolder folder_;
  Callers callers_;
  CountingMetrics metrics_;
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
  folder_.Remove("tokens");
  EXPECT_THAT(std::string(Create().status().message()), HasSubstr("tokens"));
  folder_.Remove("policy");
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
    FILE* const file = fopen(folder_.Path("tokens").c_str(), "r+");
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
      {"gone", [&] { folder_.Remove("policy"); }},
      {"everybody's to write", [&] { folder_.Write("policy", kPolicy, 0666); }},
      {"tokens wrong", [&] { folder_.Write("tokens", tokens + "x"); }},
      {"tokens gone", [&] { folder_.Remove("tokens"); }},
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
  EXPECT_EQ(metrics_.policy.refused, static_cast<std::int64_t>(faults.size()));
  EXPECT_EQ(metrics_.policy.taken, 1);  // With the first repair, one token of two went.
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

}  // namespace
}  // namespace normd::testing
