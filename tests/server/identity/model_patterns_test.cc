#include "server/identity/model_patterns.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace normd {
namespace {

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
