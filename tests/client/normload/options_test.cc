#include "client/normload/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace normd::load {
namespace {

using ::testing::HasSubstr;

std::string Error(const std::vector<std::string>& arguments) {
  return std::string(ParseOptions(arguments).status().message());
}

TEST(OptionsTest, DefaultsToAClosedLoopOfTenSeconds) {
  const auto o = ParseOptions({"--model=m"});
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_FALSE(o->open_loop());
  EXPECT_EQ(o->concurrency, 16);
  EXPECT_EQ(o->connections, 16);
  EXPECT_EQ(o->duration, absl::Seconds(10));
  ASSERT_EQ(o->mix.size(), 1u);
  EXPECT_EQ(o->mix[0].ToString(), "m:1x64x56x56:float32");
}

TEST(OptionsTest, ConnectionsFollowTheCallers) {
  EXPECT_EQ(ParseOptions({"--model=m", "--concurrency=3"})->connections, 3);
  EXPECT_EQ(ParseOptions({"--model=m", "--concurrency=300"})->connections, 16);
  EXPECT_EQ(ParseOptions({"--model=m", "--concurrency=1", "--rate=5"})->connections, 16);
  EXPECT_EQ(ParseOptions({"--model=m", "--connections=40"})->connections, 40);
}

TEST(OptionsTest, RequestsLiftTheDefaultDuration) {
  EXPECT_EQ(ParseOptions({"--model=m", "--requests=5"})->duration, absl::InfiniteDuration());
  EXPECT_EQ(ParseOptions({"--model=m", "--requests=5", "--duration=2s"})->duration,
            absl::Seconds(2));
}

TEST(OptionsTest, TakesAMix) {
  const auto o = ParseOptions({"--mix=a:1x2:f16:3,b:4x5"});
  ASSERT_TRUE(o.ok()) << o.status();
  EXPECT_EQ(o->mix.size(), 2u);
}

TEST(OptionsTest, NamesWhatIsWrong) {
  EXPECT_THAT(Error({}), HasSubstr("--model and --mix"));
  EXPECT_THAT(Error({"--model=m", "--mix=a:1"}), HasSubstr("--model and --mix"));
  EXPECT_THAT(Error({"--model=m", "extra"}), HasSubstr("extra"));
  EXPECT_THAT(Error({"--model=m", "--shape=1xx"}), HasSubstr("shape"));
  EXPECT_THAT(Error({"--model=m", "--dtype=int8"}), HasSubstr("dtype"));
  EXPECT_THAT(Error({"--mix=a"}), HasSubstr("mix"));
  EXPECT_THAT(Error({"--model=m", "--concurrency=0"}), HasSubstr("--concurrency: 0, wanted 1"));
  EXPECT_THAT(Error({"--model=m", "--rate=-1"}), HasSubstr("--rate"));
  EXPECT_THAT(Error({"--model=m", "--rate=nan"}), HasSubstr("--rate"));
  EXPECT_THAT(Error({"--model=m", "--arrival=often"}), HasSubstr("--arrival: often"));
  EXPECT_THAT(Error({"--model=m", "--connections=-1"}), HasSubstr("--connections"));
  EXPECT_THAT(Error({"--model=m", "--max_inflight=0"}), HasSubstr("--max_inflight"));
  EXPECT_THAT(Error({"--model=m", "--timeout=0s"}), HasSubstr("--timeout"));
  EXPECT_THAT(Error({"--model=m", "--duration=0s"}), HasSubstr("--duration"));
  EXPECT_THAT(Error({"--model=m", "--warmup=-1s"}), HasSubstr("--warmup"));
  EXPECT_THAT(Error({"--model=m", "--warmup=inf"}), HasSubstr("--warmup"));
  EXPECT_THAT(Error({"--model=m", "--requests=-1"}), HasSubstr("--requests"));
  EXPECT_THAT(Error({"--model=m", "--give_up_after=-1"}), HasSubstr("--give_up_after"));
  EXPECT_THAT(Error({"--model=m", "--verify_every=0"}), HasSubstr("--verify_every"));
  EXPECT_THAT(Error({"--model=m", "--max_error_share=1.5"}), HasSubstr("--max_error_share"));
  EXPECT_THAT(Error({"--model=m", "--verify"}), HasSubstr("--model_repository"));
}

}  // namespace
}  // namespace normd::load
