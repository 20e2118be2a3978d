#include "server/rpc/kept_list.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>

#include "normd/v1/norm_service.pb.h"
#include "tests/support/fake_clock.h"

namespace normd {
namespace {

class KeptListTest : public ::testing::Test {
 protected:
  // How often lists were made until one was given to a caller that has just come.
  int MadeFor(std::optional<std::uint64_t> state) { return MadeFor(state, clock_.Now()); }
  int MadeFor(std::optional<std::uint64_t> state, TimePoint arrival) {
    const auto fill = [this](v1::ListModelsResponse& list) {
      ++made_;
      list.add_models()->set_version(made_);
    };
    grpc::ByteBuffer bytes;
    EXPECT_TRUE(list_.Get(state, arrival, clock_, fill, bytes).ok());
    clock_.Advance(std::chrono::seconds(1));
    v1::ListModelsResponse list;
    EXPECT_TRUE(grpc::SerializationTraits<v1::ListModelsResponse>::Deserialize(&bytes, &list).ok());
    return static_cast<int>(list.models(0).version());
  }

  FakeClock clock_;
  int made_ = 0;
  KeptList<v1::ListModelsResponse> list_;
};

TEST_F(KeptListTest, IsMadeOnceForEachState) {
  EXPECT_EQ(MadeFor(0), 1);
  EXPECT_EQ(MadeFor(0), 1);
  EXPECT_EQ(MadeFor(1), 2);
  EXPECT_EQ(MadeFor(1), 2);
  EXPECT_EQ(MadeFor(0), 3);
}

TEST_F(KeptListTest, WithoutAStateIsMadeOnceForThoseWhoCameBefore) {
  const TimePoint early = clock_.Now();
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(MadeFor(std::nullopt, early), 1);
  EXPECT_EQ(MadeFor(std::nullopt, early), 1);
  EXPECT_EQ(MadeFor(std::nullopt), 2);
  EXPECT_EQ(MadeFor(std::nullopt), 3);
  EXPECT_EQ(MadeFor(std::nullopt, early), 3);
}

TEST_F(KeptListTest, AListThatIsNotKeptIsMadeForTheFirst) {
  EXPECT_EQ(MadeFor(std::nullopt, TimePoint::min()), 1);
}

}  // namespace
}  // namespace normd
