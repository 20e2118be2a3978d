#include "server/identity/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/identity/model_patterns.h"

namespace normd {
namespace {

using ::testing::HasSubstr;

constexpr char kRoles[] = R"(role { name: "user" infer: "rows_*" infer: "exact" }
role { name: "viewer" observe: true }
role { name: "operator" admin: true }
role { name: "prober" health: true }
)";

Policy Parsed(const std::string& text) {
  absl::StatusOr<Policy> policy = Policy::Parse(text);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return policy.ok() ? *std::move(policy)
                     : *Policy::Parse(absl::StrCat(kRoles,
                                                   "identity { name: "
                                                   "\"x\" role: \"prober\" token: \"t\" }"));
}

std::string NameOf(const Identity* identity) {
  return identity == nullptr ? "nobody" : identity->name;
}

TEST(PolicyTest, EachSignLeadsToItsIdentityAndNothingElseDoes) {
  const Policy policy = Parsed(absl::StrCat(kRoles, R"(
    identity { name: "a" role: "user" token: "t1" token: "t2" spiffe: "spiffe://x/a" }
    identity { name: "b" role: "user" dns: "B.example.org" token: "t3" }
    identity { name: "c" role: "prober" anonymous: true }
    identity { name: "d" role: "user" unix_socket: true })"));
  EXPECT_EQ(NameOf(policy.own_user()), "d");
  EXPECT_EQ(NameOf(policy.ByToken("t1")), "a");
  EXPECT_EQ(NameOf(policy.ByToken("t2")), "a");
  EXPECT_EQ(NameOf(policy.ByToken("a")), "nobody") << "an identity's name is no token's";
  EXPECT_EQ(NameOf(policy.ByUri("spiffe://x/a")), "a");
  for (const char* near : {"spiffe://x/a/", "spiffe://x/A", "spiffe://x/", "spiffe://x/ab", ""}) {
    EXPECT_EQ(NameOf(policy.ByUri(near)), "nobody") << near;
  }
  EXPECT_EQ(NameOf(policy.ByDnsName("b.example.org")), "b");
  EXPECT_EQ(NameOf(policy.ByDnsName("b.EXAMPLE.org")), "b");
  for (const char* near : {"example.org", "x.b.example.org", "b.example.org.", "*.example.org"}) {
    EXPECT_EQ(NameOf(policy.ByDnsName(near)), "nobody") << near;
  }
  EXPECT_EQ(NameOf(policy.anonymous()), "c");
  EXPECT_EQ(policy.anonymous()->anonymous, true);
}

TEST(PolicyTest, ARoleGivesWhatItSaysAndRolesAddUp) {
  const Policy policy = Parsed(absl::StrCat(kRoles, R"(
    identity { name: "u" role: "user" token: "t1" }
    identity { name: "v" role: "viewer" token: "t2" }
    identity { name: "o" role: "operator" token: "t3" }
    identity { name: "p" role: "prober" token: "t4" }
    identity { name: "uv" role: "user" role: "viewer" token: "t5" })"));
  struct Expected {
    const char* token;
    bool describe, infer, observe, admin;
  };
  for (const auto& [token, describe, infer, observe, admin] :
       std::vector<Expected>{{"t1", true, true, false, false},
                             {"t2", true, false, true, false},
                             {"t3", false, false, false, true},
                             {"t4", false, false, false, false},
                             {"t5", true, true, true, false}}) {
    const Rights& rights = policy.ByToken(token)->rights;
    EXPECT_TRUE(rights.Include(Right::kHealth)) << token;
    EXPECT_EQ(rights.Include(Right::kDescribe), describe) << token;
    EXPECT_EQ(rights.Include(Right::kInfer), infer) << token;
    EXPECT_EQ(rights.Include(Right::kObserve), observe) << token;
    EXPECT_EQ(rights.Include(Right::kAdmin), admin) << token;
    for (const char* model : {"rows_1", "exact"}) {
      EXPECT_EQ(rights.IncludeModel(Right::kInfer, model), infer) << token << model;
      EXPECT_EQ(rights.IncludeModel(Right::kDescribe, model), describe) << token << model;
    }
    for (const char* model : {"row", "exact2", "", "EXACT"}) {
      EXPECT_FALSE(rights.IncludeModel(Right::kInfer, model)) << token << model;
      EXPECT_EQ(rights.IncludeModel(Right::kDescribe, model), observe) << token << model;
    }
  }
}

TEST(PolicyTest, LimitsAreThoseGivenAndABurstIsASecondsRate) {
  const auto limits = [](const std::string& text) {
    const Policy policy = Parsed(absl::StrCat(
        kRoles, "identity { name: \"a\" role: \"user\" token: \"t\" limits { ", text, " } }"));
    const IdentityLimits& given = policy.ByToken("t")->limits;
    return absl::StrCat(given.rate.per_second, " ", given.rate.burst, " ", given.concurrent_calls,
                        " ", given.bytes_in_flight);
  };
  EXPECT_EQ(limits(""), "0 0 0 0");
  EXPECT_EQ(limits("requests_per_second: 2.5"), "2.5 3 0 0");
  EXPECT_EQ(limits("requests_per_second: 0.01"), "0.01 1 0 0");
  EXPECT_EQ(limits("requests_per_second: 5 burst: 1 concurrent_calls: 2 bytes_in_flight: 3"),
            "5 1 2 3");
}

struct Refused {
  std::string text;  // After kRoles, which has four lines.
  std::string message;
};

std::string One(const std::string& more) {
  return absl::StrCat("identity { name: \"a\" role: \"user\" token: \"t\"\n", more, " }");
}

std::vector<Refused> RefusedPolicies() {
  return {
      {"", "identity: 0, wanted 1"},
      {"identity {", "line 5, column"},
      {"identity { name: \"a\" rights: \"x\" }", "line 5, column 22: "},
      {"identity { name: \"a\" rights: \"x\" }",
       "line 5, column 22: identity[0]: unknown field \"rights\", wanted one of name, role, token"},
      {"identity { name: \"a\" tokens: \"x\" }", "did you mean \"token\"?"},
      {"identity { name: \"a\" name: \"b\" }", "identity[0].name: a second one, wanted one"},
      {"identity { name: a }", "line 5, column 18: identity[0].name: a, wanted a string in quotes"},
      {"identity { limits { burst: 1.5 } }", "identity[0].limits.burst: 1.5, wanted an integer"},
      {"role { name: \"r\" observe: maybe }\n" + One(""), "line 5, column"},
      {"role { name: \"user\" admin: true }", "line 5: role \"user\": name: a second role"},
      {"role { name: \"r\" }", "role \"r\": rights: none"},
      {"role { observe: true }", "line 5: role \"\": name: \"\", wanted 1 to 64"},
      {"role { name: \"r\" infer: \"a*b\" }", "role \"r\": infer: \"a*b\", wanted a model's name"},
      {"\n\n" + One("name: \"b\""), "line 8"},
      {One("") + "\n" + One(""), "line 7: identity \"a\": name: a second identity"},
      {"identity { name: \"\" role: \"user\" token: \"t\" }", "line 5: identity \"\": name: \"\""},
      {"identity { name: \"a b\" role: \"user\" token: \"t\" }",
       "name: \"a b\", wanted 1 to 64 letters"},
      {"identity { name: \"-a\" role: \"user\" token: \"t\" }", "wanted 1 to 64 letters"},
      {"identity { name: \"a\" token: \"t\" }", "identity \"a\": role: 0, wanted 1 to 16"},
      {"identity { name: \"a\" role: \"root\" token: \"t\" }",
       "role: \"root\", wanted the name of a role"},
      {"identity { name: \"a\" role: \"user\" }", "recognised by: nothing"},
      {One("token: \"a b\""), "token: \"a b\", wanted"},
      {One("spiffe: \"https://x\""), "spiffe: \"https://x\", wanted a whole URI"},
      {One("spiffe: \"spiffe://x y\""), "spiffe"},
      {One("dns: \"*.example.org\""), "dns: \"*.example.org\", wanted a whole name"},
      {One("dns: \"\""), "dns: \"\", wanted a whole name"},
      {One("uid: 1"), "unknown field \"uid\""},
      {One("token: \"u\" token: \"u\""), "token: \"u\" again"},
      {One("dns: \"A\" dns: \"a\""), "dns: \"a\" again"},
      {One("spiffe: \"spiffe://a\" spiffe: \"spiffe://a\""), "spiffe: \"spiffe://a\" again"},
      {One("unix_socket: true") + "\nidentity { name: \"b\" role: \"user\" unix_socket: true }",
       "line 7: identity \"b\": unix_socket: true again"},
      {One("anonymous: true") + "\nidentity { name: \"b\" role: \"user\" anonymous: true }",
       "line 7: identity \"b\": anonymous: true again"},
      {One("limits { requests_per_second: 0 }"), "limits.requests_per_second: 0, wanted above 0"},
      {One("limits { requests_per_second: -1 }"), "limits.requests_per_second: -1"},
      {One("limits { requests_per_second: nan }"), "limits.requests_per_second: nan"},
      {One("limits { requests_per_second: inf }"), "limits.requests_per_second: inf"},
      {One("limits { burst: 2 }"), "limits.burst: 2, wanted requests_per_second beside it"},
      {One("limits { requests_per_second: 1 burst: 0 }"), "limits.burst: 0, wanted 1 or more"},
      {One("limits { concurrent_calls: 0 }"), "limits.concurrent_calls: 0, wanted 1 or more"},
      {One("limits { bytes_in_flight: -5 }"), "limits.bytes_in_flight: -5, wanted 1 or more"},
  };
}

TEST(PolicyTest, EveryFaultIsRefusedWithItsPlace) {
  for (const Refused& refused : RefusedPolicies()) {
    const auto policy = Policy::Parse(absl::StrCat(kRoles, refused.text));
    ASSERT_FALSE(policy.ok()) << refused.text;
    EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(policy.status().message()), HasSubstr(refused.message)) << refused.text;
  }
}

// Whatever becomes of a text, it is refused with a reason or every identity in it can be used.
TEST(PolicyTest, AnyChangeOfATextIsRefusedOrGivesAWholePolicy) {
  const std::string whole = absl::StrCat(kRoles, R"(
    identity { name: "a" role: "user" role: "viewer" token: "t" spiffe: "spiffe://x/a"
               limits { requests_per_second: 10 burst: 5 concurrent_calls: 3 bytes_in_flight: 9 } }
    identity { name: "b" role: "operator" dns: "b" token: "t7" anonymous: true })");
  const unsigned seed = 20261122;
  std::mt19937 random(seed);
  int taken = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = whole;
    for (auto changes = 1 + random() % 3; changes > 0; --changes) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0: text.erase(at, 1 + random() % 8); break;
        case 1: text[at] = static_cast<char>(random()); break;
        default: text.insert(at, whole.substr(random() % whole.size(), random() % 30)); break;
      }
      if (text.empty()) text = " ";
    }
    const auto policy = Policy::Parse(text);
    if (!policy.ok()) {
      ASSERT_FALSE(policy.status().message().empty()) << "seed " << seed << "\n" << text;
      continue;
    }
    ++taken;
    ASSERT_FALSE(policy->identities().empty());
    for (const Identity& identity : policy->identities()) {
      ASSERT_TRUE(identity.rights.Include(Right::kHealth));
      ASSERT_FALSE(identity.name.empty());
    }
  }
  EXPECT_GT(taken, 20);
  EXPECT_LT(taken, 2900);
}

TEST(ModelPatternsTest, RefusesWhatIsNoNameOrHasItsStarElsewhere) {
  for (const std::string& wrong :
       {std::string(), std::string("a*b"), std::string("*a"), std::string("**"), std::string("a**"),
        std::string("a/b"), std::string("a b"), std::string("a\n"), std::string("../x"),
        std::string("\xc3\xa9"), std::string(1, '\0'), std::string(129, 'a')}) {
    ModelPatterns patterns;
    EXPECT_EQ(patterns.Add(wrong).code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_TRUE(patterns.empty()) << wrong;
  }
}

TEST(ModelPatternsTest, OfNothingContainsNothing) {
  const ModelPatterns patterns;
  EXPECT_TRUE(patterns.empty());
  for (const char* name : {"", "a", "*"}) EXPECT_FALSE(patterns.Contains(name)) << name;
}

TEST(ModelPatternsTest, AStarAloneIsEveryModel) {
  ModelPatterns patterns;
  ASSERT_TRUE(patterns.Add("*").ok());
  for (const char* name : {"a", "any_model.1", ""}) EXPECT_TRUE(patterns.Contains(name)) << name;
}

bool Matches(const std::string& pattern, const std::string& name) {
  return absl::EndsWith(pattern, "*") ? absl::StartsWith(name, absl::StripSuffix(pattern, "*"))
                                      : pattern == name;
}

// Short names of few letters, so that many begin with others.
TEST(ModelPatternsTest, AgreesWithAListThatIsSearchedFromEndToEnd) {
  const unsigned seed = 20261122;
  std::mt19937 random(seed);
  const auto word = [&random](std::size_t least) {
    std::string text(least + random() % 4, 'a');
    for (char& c : text) c = "ab_"[random() % 3];
    return text;
  };
  for (int round = 0; round < 500; ++round) {
    ModelPatterns patterns;
    std::vector<std::string> list(random() % 6);
    for (std::string& pattern : list) {
      pattern = word(1);
      if (random() % 2 == 0) pattern += '*';
      ASSERT_TRUE(patterns.Add(pattern).ok()) << pattern;
    }
    EXPECT_EQ(patterns.empty(), list.empty());
    for (int i = 0; i < 50; ++i) {
      const std::string name = word(0);
      bool expected = false;
      for (const std::string& pattern : list) expected |= Matches(pattern, name);
      ASSERT_EQ(patterns.Contains(name), expected) << "seed " << seed << ": " << name;
    }
  }
}

}  // namespace
}  // namespace normd
