// A real Prometheus scrapes normd and computes a percentile of its latencies.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/server/process/normd_process.h"

namespace normd::testing {
namespace {

std::string OutputOf(const std::string& command) {
  std::string output;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> buffer{};
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.append(buffer.data(), count);
  }
  pclose(pipe);
  return output;
}

TEST(PrometheusTest, ComputesAPercentileFromTheScrapedHistogram) {
  if (!IsInstalled("prometheus") || !IsInstalled("promtool")) {
    GTEST_SKIP() << "prometheus is not installed (apt install prometheus)";
  }
  NormdProcess normd({"--lame_duck=0s"});
  ASSERT_NE(normd.grpc_address(), "") << normd.child().output();

  std::string folder = ::testing::TempDir() + "/normd_prometheus_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/prometheus.yml")
      << "global: {scrape_interval: 200ms}\n"
      << "scrape_configs:\n"
      << "  - job_name: normd\n"
      << "    static_configs: [{targets: ['" << normd.metrics_address() << "']}]\n";
  const std::string address = absl::StrCat("127.0.0.1:", FreePort());
  ChildProcess prometheus({"prometheus", "--config.file=" + folder + "/prometheus.yml",
                           "--storage.tsdb.path=" + folder + "/data",
                           "--web.listen-address=" + address});
  ASSERT_NE(prometheus.ReadUntil("Server is ready"), "") << prometheus.output();

  // Prometheus needs two scrapes with calls between them: call until it has a response.
  const std::string query = absl::StrCat(
      "promtool query instant http://", address,
      " 'histogram_quantile(0.99, sum by (le)"
      " (rate(normd_request_duration_seconds_bucket{model=\"rms_norm_4096\"}[1m]))) > 0'"
      " 2>&1");
  const auto stub = normd.NewStub();
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::string answer;
  while (answer.find("=> ") == std::string::npos && std::chrono::steady_clock::now() < give_up) {
    grpc::ClientContext context;
    v1::NormalizeResponse response;
    ASSERT_TRUE(stub->Normalize(&context, RmsNormRequest(1), &response).ok());
    answer = OutputOf(query);
  }
  double p99 = 0;
  ASSERT_EQ(std::sscanf(answer.c_str(), "{} => %lf", &p99), 1) << answer;
  EXPECT_GT(p99, 0);
  EXPECT_LT(p99, 10);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace normd::testing
