// A control call on a thread of its own, without a transport: what becomes of a body whose turn
// comes when its client has left.

#include "server/rpc/unary_control_call.h"

#include <grpc/grpc.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "tests/support/counting_metrics.h"
#include "tests/support/models.h"
#include "tests/support/test_lanes.h"

namespace normd {
namespace {

// Stands still. Whoever reads it on another thread than its maker's passes `gate` first.
class GatedClock final : public Clock {
 public:
  explicit GatedClock(Gate& gate) : gate_(gate) {}
  TimePoint Now() const override {
    if (std::this_thread::get_id() != maker_) gate_.Pass();
    return TimePoint(std::chrono::hours(1));
  }

 private:
  Gate& gate_;
  const std::thread::id maker_ = std::this_thread::get_id();
};

// gRPC's side of the call.
class Transport final : public grpc::ServerCallbackUnary {
 public:
  explicit Transport(UnaryControlCall& call) : call_(call) { BindReactor(&call); }

  void Finish(grpc::Status status) override {
    MutexLock lock(mutex_);
    EXPECT_FALSE(status_.has_value()) << "finished twice";
    status_ = std::move(status);
    finished_.SignalAll();
  }
  void SendInitialMetadata() override {}
  grpc::Status Wait() {
    MutexLock lock(mutex_);
    while (!status_) finished_.Wait(mutex_);
    return *status_;
  }

 private:
  grpc::internal::ServerReactor* reactor() override { return &call_; }
  void CallOnDone() override {}

  UnaryControlCall& call_;
  Mutex mutex_;
  CondVar finished_;
  std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mutex_);
};

class ControlCallTest : public ::testing::Test {
 protected:
  ControlCallTest() {
    grpc_init();
    gate_.Close();
  }
  ~ControlCallTest() override {
    queue_.Close();
    grpc_shutdown();
  }
  static CallOptions Options() {
    CallOptions options;
    options.response_timeout = Duration(0);
    return options;
  }

  Gate gate_;
  GatedClock clock_{gate_};
  CountingMetrics metrics_;
  NoBackend backend_;
  ModelRegistry registry_{{.roots = {""}, .on_change = {}}, backend_, metrics_, clock_};
  Admission admission_{{}, metrics_};
  BatchQueue queue_{{}, clock_};
  AcceptEnvironment accept_{{}, registry_, admission_, queue_, metrics_, clock_};
  CallEnvironment environment_{Options(), accept_};
};

TEST_F(ControlCallTest, ABodyWhoseClientLeavesAsItsTurnComesIsNotBegun) {
  grpc::CallbackServerContext context;
  std::atomic<bool> ran{false};
  UnaryControlCall& call = *NewCall<UnaryControlCall>(environment_, context, Method::kLoadModel);
  Transport transport(call);
  grpc::Status status;
  {
    call.Start(
        1,
        [&ran] {
          ran = true;
          return absl::OkStatus();
        },
        ControlPlace::kLoads);
    // The thread has taken it and is about to look whether anybody still waits.
    gate_.WaitForStalled(1);
    call.OnCancel();
    gate_.Open();
    status = transport.Wait();
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(status.error_message(), "the client cancelled the call before its turn came");
  EXPECT_FALSE(ran);
  EXPECT_EQ(admission_.inflight_requests(), 1) << "until gRPC is done with the call";
  call.OnDone();
  EXPECT_EQ(admission_.inflight_requests(), 0);
  EXPECT_EQ(accept_.active.count(), 0);
}

TEST_F(ControlCallTest, ABodyThatIsWantedRuns) {
  grpc::CallbackServerContext context;
  gate_.Open();
  UnaryControlCall& call = *NewCall<UnaryControlCall>(environment_, context, Method::kLoadModel);
  Transport transport(call);
  {
    call.Start(
        1, [] { return absl::NotFoundError("from the body"); }, ControlPlace::kLoads);
    EXPECT_EQ(transport.Wait().error_message(), "from the body");
  }
  call.OnDone();
}

TEST_F(ControlCallTest, MoreListsThanMayWaitAreRefused) {
  grpc::CallbackServerContext context;
  ASSERT_NE(environment_.control.lists.Submit([this] { gate_.Pass(); }), 0u);
  gate_.WaitForStalled(1);
  for (std::size_t i = 0; i < kMaxWaitingLists; ++i) {
    ASSERT_NE(environment_.control.lists.Submit([] {}), 0u);
  }
  UnaryControlCall& call = *NewCall<UnaryControlCall>(environment_, context, Method::kListModels);
  Transport transport(call);
  call.Start(
      1, [] { return absl::OkStatus(); }, ControlPlace::kLists);
  const grpc::Status status = transport.Wait();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "lists: too many calls that list wait, retry later");
  call.OnDone();
  gate_.Open();
}

}  // namespace
}  // namespace normd
