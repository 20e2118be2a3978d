#include "client/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "client/client.h"
#include "tests/support/fake_norm_service.h"

namespace normd::client {
namespace {

using ::testing::ElementsAre;

class HealthTest : public ::testing::Test {
 protected:
  test::FakeNormService server_;
  const std::unique_ptr<Client> client_ = Client::Create(server_.target()).value();
};

TEST_F(HealthTest, ChecksTheServerAndItsServices) {
  server_.SetHealth("normd.v1.NormService/a", false);
  EXPECT_EQ(client_->CheckHealth("").value(), HealthStatus::kServing);
  EXPECT_EQ(client_->CheckHealth("normd.v1.NormService/a").value(), HealthStatus::kNotServing);
  EXPECT_EQ(client_->CheckHealth("unknown").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(HealthTest, WatchTellsEachChangeUntilStopped) {
  std::vector<HealthStatus> seen;
  const absl::Status status = client_->WatchHealth("", [&](HealthStatus health) {
    seen.push_back(health);
    if (seen.size() == 1) server_.SetHealth("", false);
    if (seen.size() == 2) server_.SetHealth("", true);
    return seen.size() < 3;
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(
      seen, ElementsAre(HealthStatus::kServing, HealthStatus::kNotServing, HealthStatus::kServing));
}

TEST_F(HealthTest, WatchOfAnUnknownServiceSaysSo) {
  std::vector<HealthStatus> seen;
  EXPECT_TRUE(client_
                  ->WatchHealth("unknown",
                                [&](HealthStatus health) {
                                  seen.push_back(health);
                                  return false;
                                })
                  .ok());
  EXPECT_THAT(seen, ElementsAre(HealthStatus::kServiceUnknown));
}

TEST_F(HealthTest, WatchEndsWithTheServer) {
  const absl::Status status = client_->WatchHealth("", [&](HealthStatus) {
    server_.Stop();
    return true;
  });
  EXPECT_FALSE(status.ok());
}

TEST_F(HealthTest, WatchEndsAtItsTimeout) {
  const absl::Status status = client_->WatchHealth(
      "", [](HealthStatus) { return true; }, std::chrono::milliseconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(HealthTest, NamesAreTheProtocols) {
  EXPECT_STREQ(Name(HealthStatus::kUnknown), "UNKNOWN");
  EXPECT_STREQ(Name(HealthStatus::kServing), "SERVING");
  EXPECT_STREQ(Name(HealthStatus::kNotServing), "NOT_SERVING");
  EXPECT_STREQ(Name(HealthStatus::kServiceUnknown), "SERVICE_UNKNOWN");
}

}  // namespace
}  // namespace normd::client
