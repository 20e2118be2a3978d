// A run of normload against a fake server, in this process.

#ifndef NORMD_TESTS_CLIENT_NORMLOAD_NORMLOAD_FIXTURE_H_
#define NORMD_TESTS_CLIENT_NORMLOAD_NORMLOAD_FIXTURE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/normload/normload.h"
#include "nlohmann/json.hpp"
#include "tests/support/fake_norm_service.h"
#include "tests/support/temp_repository.h"

namespace normd::load {

// Interrupts at once after Interrupt.
class FakeInterrupts final : public Interrupts {
 public:
  bool Wait(Duration limit) override {
    MutexLock lock(mutex_);
    if (!interrupted_) changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + limit);
    return std::exchange(interrupted_, false);
  }
  void Interrupt() {
    MutexLock lock(mutex_);
    interrupted_ = true;
    changed_.SignalAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool interrupted_ ABSL_GUARDED_BY(mutex_) = false;
};

class NormloadRun : public ::testing::Test {
 protected:
  // Runs with the arguments as they are.
  void RunPlainly(const std::vector<std::string>& arguments) {
    std::ostringstream out;
    std::ostringstream err;
    code_ = RunNormload(arguments, interrupts_, out, err, false);
    out_ = out.str();
    err_ = err.str();
  }
  // Runs against a server without warm-up and progress, and reads the report.
  void RunAgainst(const test::FakeNormService& server, std::vector<std::string> arguments) {
    for (const std::string& argument :
         {"--server=" + server.target(), std::string("--warmup=0s"), std::string("--quiet"),
          "--json=" + folder_.File("report.json")}) {
      arguments.push_back(argument);
    }
    RunPlainly(arguments);
    report_ = nlohmann::json::parse(test::ReadFile(folder_.File("report.json")), nullptr, false);
    ASSERT_TRUE(report_.is_object());
  }

  const test::TempFolder folder_;
  FakeInterrupts interrupts_;
  int code_ = -1;
  std::string out_;
  std::string err_;
  nlohmann::json report_;
};

class NormloadTest : public NormloadRun {
 protected:
  NormloadTest() {
    const v1::ModelConfig config = test::ConfigOf("instance_norm { channels: 4 affine: true }");
    server_.AddModel("norm", config, test::AffineParameters(4));
    server_.TellTensors("norm", {{"x", {-1, 4, -2}}}, {{"y", {-1, 4, -2}}});
    test::WriteModel(folder_.path(), "norm", config, test::AffineParameters(4));
  }

  void Run(const std::vector<std::string>& arguments) { RunAgainst(server_, arguments); }

  test::FakeNormService server_;
};

}  // namespace normd::load

#endif  // NORMD_TESTS_CLIENT_NORMLOAD_NORMLOAD_FIXTURE_H_
