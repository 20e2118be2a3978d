// ActiveCalls, DeadlineOf, CatchAll, ForClient and Readiness.

#include <grpc/grpc.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/retry_after.h"
#include "normd/v1/norm_service.pb.h"
#include "server/accept/active_calls.h"
#include "server/accept/client_status.h"
#include "server/rpc/call_arrival.h"
#include "server/rpc/control_messages.h"
#include "server/rpc/readiness.h"
#include "server/rpc/unary_call.h"
#include "tests/support/fake_clock.h"
#include "tests/support/metric_value.h"
#include "tests/support/models.h"
#include "tests/support/test_lanes.h"

namespace normd {
namespace {

TEST(ActiveCallsTest, WaitsUntilTheLastCallLeaves) {
  ActiveCalls active;
  active.Enter();
  active.Enter();
  std::thread calls([&] {
    active.Leave();
    active.Leave();
  });
  EXPECT_TRUE(active.WaitNone(kNever, [] { return false; }));
  EXPECT_EQ(active.count(), 0);
  calls.join();
}

TEST(ActiveCallsTest, GivesUpWhenAskedTo) {
  ActiveCalls active;
  active.Enter();
  std::atomic<bool> give_up{false};
  std::thread other([&] {
    give_up = true;
    active.Recheck();
  });
  EXPECT_FALSE(active.WaitNone(kNever, [&] { return give_up.load(); }));
  other.join();
  active.Leave();
}

TEST(ActiveCallsTest, GivesUpWhenTheTimeHasPassed) {
  ActiveCalls active;
  active.Enter();
  EXPECT_FALSE(active.WaitNone(TimePoint{}, [] { return false; }));
  active.Leave();
}

// In every state: with a model or none, started, with room, stopped, and where none is needed.
TEST(ReadinessTest, TellsWhyNotExactlyWhileTheMetricSaysNotReady) {
  for (int state = 0; state < 32; ++state) {
    const auto is = [state](int bit) { return (state & bit) != 0; };
    Metrics metrics;
    Readiness readiness(metrics, is(16) ? WithoutModels::kReady : WithoutModels::kNotReady);
    if (is(1)) readiness.SetModel("m", true);
    if (is(2)) readiness.Start();
    readiness.SetRoom(!is(4));
    if (is(8)) readiness.Stop("of the test");
    EXPECT_EQ(readiness.WhyNot().empty(), MetricValue(metrics, families::kReady) == 1)
        << state << ": " << readiness.WhyNot();
    readiness.Stop("of the test");
    readiness.Stop();
    EXPECT_EQ(readiness.WhyNot(), "of the test") << "the first reason stays";
  }
}

// As gRPC makes them of grpc-timeout: up to 99999999 of every unit.
TEST(DeadlineTest, IsRightForEveryTimeoutThatAClientMaySend) {
  FakeClock clock;
  clock.Advance(std::chrono::hours(1));
  const gpr_timespec now = gpr_now(GPR_CLOCK_MONOTONIC);
  EXPECT_EQ(DeadlineOf(gpr_inf_future(GPR_CLOCK_MONOTONIC), clock), kNever);
  EXPECT_LE(DeadlineOf(gpr_inf_past(GPR_CLOCK_MONOTONIC), clock), clock.Now());
  const double seconds_of[] = {3600, 60, 1, 1e-3, 1e-6, 1e-9};
  for (const double unit : seconds_of) {
    for (const std::int64_t value : {0L, 1L, 2562047L, 2562048L, 2600000L, 9999999L, 99999999L}) {
      const double seconds = unit * static_cast<double>(value);
      const gpr_timespec span =
          unit >= 1 ? gpr_time_from_seconds(static_cast<std::int64_t>(seconds), GPR_TIMESPAN)
                    : gpr_time_from_nanos(static_cast<std::int64_t>(seconds * 1e9), GPR_TIMESPAN);
      const TimePoint deadline = DeadlineOf(gpr_time_add(now, span), clock);
      if (seconds > 366.0 * 24 * 3600) {
        EXPECT_EQ(deadline, kNever) << value << " of " << unit << " s";
        continue;
      }
      // The time since `now` was read is lost.
      const double left = std::chrono::duration<double>(deadline - clock.Now()).count();
      EXPECT_LE(left, seconds + 1e-6) << value << " of " << unit << " s";
      EXPECT_GE(left, seconds - 60) << value << " of " << unit << " s";
    }
  }
}

TEST(CatchAllTest, TurnsExceptionsIntoStatuses) {
  EXPECT_TRUE(CatchAll([] { return absl::OkStatus(); }).ok());
  EXPECT_EQ(CatchAll([]() -> absl::Status { throw std::bad_alloc(); }).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CatchAll([]() -> absl::Status { throw std::runtime_error("secret"); }).code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(CatchAll([]() -> absl::Status { throw 5; }).code(), absl::StatusCode::kInternal);
}

TEST(ForClientTest, KeepsWhenToRetryAndNotWhatFailed) {
  absl::Status status = absl::UnknownError("deadbeef");
  EXPECT_EQ(RetryAfterOf(ForClient(status, "")), std::nullopt);
  SetRetryAfter(std::chrono::milliseconds(3), status);
  const absl::Status told = ForClient(status, "");
  EXPECT_EQ(RetryAfterOf(told), std::chrono::milliseconds(3));
  EXPECT_EQ(told.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(std::string(told.message()).find("deadbeef"), std::string::npos);
}

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

// A control call on a thread of its own, without a transport: what becomes of a body whose turn
// comes when its client has left.

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
  Metrics metrics_;
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
