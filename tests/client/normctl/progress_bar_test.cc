#include "client/normctl/progress_bar.h"

#include <chrono>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_clock.h"

namespace normd::client {
namespace {

using ::testing::StartsWith;

TEST(ProgressBarTest, ALineTellsPartRateAndRest) {
  EXPECT_EQ(ProgressLine(0, 8'000'000'000, Duration(0)),
            "[>                       ]   0%  0.00 of 8.00 GB  0.00 GB/s");
  EXPECT_EQ(ProgressLine(2'000'000'000, 8'000'000'000, std::chrono::seconds(4)),
            "[======>                 ]  25%  2.00 of 8.00 GB  0.50 GB/s  12.0 s left");
  EXPECT_EQ(ProgressLine(8'000'000'000, 8'000'000'000, std::chrono::seconds(8)),
            "[========================] 100%  8.00 of 8.00 GB  1.00 GB/s");
}

TEST(ProgressBarTest, DrawsTenTimesASecondAndClearsTheLine) {
  FakeClock clock;
  std::ostringstream out;
  {
    ProgressBar bar(&out, clock);
    bar.Update(1, 100);
    const std::string first = out.str();
    EXPECT_THAT(first, StartsWith("\r["));
    bar.Update(2, 100);
    EXPECT_EQ(out.str(), first);
    clock.Advance(std::chrono::milliseconds(100));
    bar.Update(3, 100);
    EXPECT_GT(out.str().size(), first.size());
  }
  EXPECT_EQ(out.str().back(), '\r');
  ProgressBar none(nullptr, clock);
  none.Update(1, 2);
}

}  // namespace
}  // namespace normd::client
