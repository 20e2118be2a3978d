// Requests that come before their inputs are written, with an event behind which those are.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/rpc/graceful_stop.h"
#include "tests/server/rpc/device_event_fixture.h"
#include "tests/support/temp_repository.h"

namespace normd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AsyncCall;
using ::testing::HasSubstr;
using testing::kTensorBytes;
using Code = grpc::StatusCode;

class DeviceEventTest : public testing::DeviceEventFixture {
 protected:
  DeviceEventTest() { RegisterOk(allocation_, 1); }

  // Requests so far.
  double Computed() {
    return server_.Metric(
        "normd_stage_duration_seconds_count{model=\"instance_norm_64\",stage=\"compute\"}");
  }
};

// By both protocols: x is written while the request waits, and nothing is read or written before.
TEST_F(DeviceEventTest, NothingIsTouchedBeforeTheEventIsReached) {
  const std::string expected = Expected(Plain());
  for (const bool infer : {false, true}) {
    std::memset(allocation_.data, 0x5a, kFileBytes);
    const std::string untouched = OutputAt(allocation_, kY);
    const std::string handle = events_.Make();
    std::thread call([&] {
      const grpc::Status status = infer ? Infer(InferBehind(handle)) : Normalize(Behind(handle));
      EXPECT_TRUE(status.ok()) << status.error_message();
    });
    WaitForWaiting(1);
    while (events_.asked(handle) < 3) std::this_thread::yield();
    EXPECT_EQ(OutputAt(allocation_, kY), untouched);
    EXPECT_EQ(server_.Metric("normd_event_waiting_requests"), 1);
    WriteX();
    events_.Reach(handle);
    call.join();
    EXPECT_EQ(OutputAt(allocation_, kY), expected);
  }
  EXPECT_EQ(Ended("reached"), 2);
  EXPECT_EQ(server_.Metric("normd_event_waiting_requests"), 0);
}

TEST_F(DeviceEventTest, TheResponseTellsOfTheWaitAsTimeInTheQueue) {
  WriteX();
  const std::string handle = events_.Make();
  AsyncCall call(server_.stub(), Behind(handle));
  WaitForWaiting(1);
  const auto begin = std::chrono::steady_clock::now();
  while (events_.asked(handle) < 20) std::this_thread::yield();
  const auto waited = std::chrono::steady_clock::now() - begin;
  events_.Reach(handle);
  ASSERT_TRUE(call.Wait().ok()) << call.Wait().error_message();
  EXPECT_GE(call.response.stages().queue_ns(), std::chrono::nanoseconds(waited).count());
}

TEST_F(DeviceEventTest, ANeighbourIsNotDelayed) {
  const std::string expected = Expected(Plain());
  const auto other = WithInput(1);
  RegisterOk(other, 1, "other");
  std::vector<std::unique_ptr<AsyncCall>> stuck;
  const std::string never = events_.Make();
  for (int i = 0; i < 3; ++i) {
    stuck.push_back(std::make_unique<AsyncCall>(server_.stub(), Behind(never)));
  }
  WaitForWaiting(3);
  for (int i = 0; i < 20; ++i) {
    std::memset(other.data + kY, 0, kTensorBytes);
    const std::string soon = events_.Make();
    events_.Reach(soon);
    ASSERT_TRUE(Normalize(Behind(soon, "other")).ok());
    EXPECT_EQ(OutputAt(other, kY), expected);
    ASSERT_TRUE(Normalize(Plain()).ok());
  }
  EXPECT_EQ(server_.event_waits().waiting_requests(), 3);
  for (const auto& call : stuck) call->context.TryCancel();
}

TEST_F(DeviceEventTest, AnEventThatIsNeverReachedEndsWithTheDeadlineOrTheQueueTimeout) {
  v1::NormalizeRequest request = Behind(events_.Make());
  request.set_queue_timeout_ns(2'000'000);
  const grpc::Status late = Normalize(request);
  EXPECT_EQ(late.error_code(), Code::DEADLINE_EXCEEDED);
  EXPECT_THAT(late.error_message(), HasSubstr("queue_timeout_ns: the event of event_handle was"));

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(20));
  v1::NormalizeResponse unused;
  const grpc::Status dead = server_.stub().Normalize(&context, Behind(events_.Make()), &unused);
  EXPECT_EQ(dead.error_code(), Code::DEADLINE_EXCEEDED);
  server_.WaitIdle();
  EXPECT_EQ(server_.event_waits().waiting_requests(), 0);
  EXPECT_TRUE(UnregisterDevice("r", "refuse").ok()) << "no request holds the region";
}

TEST_F(DeviceEventTest, AClientThatLeavesLetsGoOfItsRegionAndItsEvent) {
  {
    AsyncCall call(server_.stub(), Behind(events_.Make()));
    WaitForWaiting(1);
    EXPECT_EQ(UnregisterDevice("r", "refuse").error_code(), Code::FAILED_PRECONDITION);
    call.context.TryCancel();
    EXPECT_EQ(call.Wait().error_code(), Code::CANCELLED);
  }
  server_.WaitIdle();
  EXPECT_EQ(server_.event_waits().waiting_requests(), 0);
  EXPECT_EQ(Ended("cancelled"), 1);
  EXPECT_TRUE(UnregisterDevice("r", "refuse").ok());
  EXPECT_EQ(memory_.opened(), 0);
}

TEST_F(DeviceEventTest, ARegionThatIsUnregisteredMeanwhileIsThereUntilTheRequestEnds) {
  const std::string expected = Expected(Plain());
  WriteX();
  const std::string handle = events_.Make();
  AsyncCall call(server_.stub(), Behind(handle));
  WaitForWaiting(1);
  ASSERT_TRUE(UnregisterDevice("r").ok());
  EXPECT_EQ(memory_.opened(), 1) << "of the request";
  const auto again = memory_.Allocate(1, kFileBytes);
  RegisterOk(again, 1);
  events_.Reach(handle);
  ASSERT_TRUE(call.Wait().ok()) << call.Wait().error_message();
  EXPECT_EQ(OutputAt(allocation_, kY), expected);
  server_.WaitIdle();
  EXPECT_EQ(memory_.opened(), 1) << "of the new one";
}

TEST_F(DeviceEventTest, WhatIsNoHandleIsRefusedByName) {
  const auto of_infer = [this](const inference::InferParameter& parameter) {
    inference::ModelInferRequest request = InRegions({}, {"r", kY});
    (*request.mutable_parameters())["event_handle"] = parameter;
    return Infer(request);
  };
  inference::InferParameter parameter;
  parameter.set_int64_param(1);
  EXPECT_THAT(of_infer(parameter).error_message(),
              HasSubstr("parameters[\"event_handle\"]: no text, wanted"));
  EXPECT_THAT(of_infer({}).error_message(),
              HasSubstr("parameters[\"event_handle\"]: no text, wanted"));
  parameter.set_string_param("");
  EXPECT_THAT(of_infer(parameter).error_message(),
              HasSubstr("parameters[\"event_handle\"]: 0 bytes, wanted 64"));
  parameter.set_string_param("?");
  EXPECT_THAT(of_infer(parameter).error_message(),
              HasSubstr("parameters[\"event_handle\"]: not base64, wanted"));

  const std::string dead = events_.Make();
  events_.EndClient(dead);
  const std::string good = events_.Make();
  struct Case {
    std::string handle;
    const char* text;
  };
  for (const Case& wrong : std::vector<Case>{
           {"short", "event_handle: 5 bytes, wanted 64, a cudaIpcEventHandle_t"},
           {std::string(65, 'h'), "event_handle: 65 bytes, wanted 64"},
           {std::string(kEventHandleBytes, '\0'), "event_handle: not one of a living process"},
           {dead, "event_handle: not one of a living process"}}) {
    ExpectRefused(InferBehind(wrong.handle), Code::INVALID_ARGUMENT, wrong.text);
  }
  v1::NormalizeRequest long_one = Behind(std::string(2000, 'h'));
  EXPECT_THAT(Normalize(long_one).error_message(),
              HasSubstr("event_handle: 2000 bytes, wanted at most 1024"));

  inference::ModelInferRequest in_message = testing::ToInfer(Plain());
  SetEvent(good, in_message);
  ExpectRefused(in_message, Code::INVALID_ARGUMENT,
                "event_handle: no tensor of the request lies in memory of a device");
  EXPECT_EQ(server_.event_waits().waiting_requests(), 0);
}

// Indexes are read when the request comes, and the client's device may write them until the event.
TEST_F(DeviceEventTest, IndexesInARegionAreRefused) {
  LoadStyles();
  RegionFixture::RegisterOk(file_, kFileBytes, "host");
  // Those that the client is still to write are not even indexes.
  file_.As<std::int64_t>()[0] = -1;
  const std::string handle = events_.Make();
  inference::ModelInferRequest request = InferBehind(handle);
  request.set_model_name("styles");
  auto& indexes = *request.add_inputs();
  indexes.set_name("style_index");
  indexes.set_datatype("INT64");
  indexes.add_shape(2);
  Place({"host", 0, 16}, &indexes);
  ExpectRefused(request, Code::INVALID_ARGUMENT,
                "inputs[1].shared_memory: region \"host\" for the indexes \"style_index\" of a "
                "request with event_handle, wanted them in the message");
  {
    testing::InferStreamClient stream(server_.NewChannel());
    stream.Send(request);
    const auto response = stream.Read();
    ASSERT_TRUE(response.has_value());
    EXPECT_THAT(response->error_message(), HasSubstr("inputs[1].shared_memory: "));
  }
  EXPECT_EQ(events_.opens(), 0);

  indexes.clear_parameters();
  request.add_raw_input_contents(std::string(16, '\0'));
  events_.Reach(handle);
  const grpc::Status status = Infer(request);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(DeviceEventTest, AClientHasABoundedNumberOfThemAndSendsOthersWithout) {
  const std::string never = events_.Make();
  std::vector<std::unique_ptr<AsyncCall>> stuck;
  for (int i = 0; i < 4; ++i) {
    stuck.push_back(std::make_unique<AsyncCall>(server_.stub(), Behind(never)));
  }
  WaitForWaiting(4);
  const grpc::Status status = Normalize(Behind(never));
  EXPECT_EQ(status.error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("event_handle: 4 requests of this client's wait"));
  EXPECT_EQ(Ended("refused"), 1);
  EXPECT_EQ(
      server_.Metric("normd_rejected_total{model=\"instance_norm_64\",reason=\"event_waits\"}"), 1);
  EXPECT_TRUE(Normalize(Plain()).ok()) << "without an event";
  for (const auto& call : stuck) call->context.TryCancel();
}

TEST_F(DeviceEventTest, ManyEventsThatComeAndGoLeaveNothing) {
  WriteX();
  const std::string expected = Expected(Plain());
  for (int i = 0; i < 2000; ++i) {
    const std::string handle = events_.Make();
    events_.Reach(handle);
    const grpc::Status status = i % 2 == 0 ? Normalize(Behind(handle)) : Infer(InferBehind(handle));
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_EQ(OutputAt(allocation_, kY), expected);
  EXPECT_EQ(events_.opens(), 2000);
  EXPECT_LE(events_.most_opened(), 2);
  const auto end = std::chrono::steady_clock::now() + seconds(30);
  while (events_.opened() > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  EXPECT_EQ(events_.opened(), 0);
}

// Of a client that destroys its event when it has the response: the next one has its handle.
TEST_F(DeviceEventTest, AnEventThatIsMadeAnewIsTheOneThatIsAskedFor) {
  const std::string expected = Expected(Plain());
  const std::string handle = events_.Make();
  events_.Reach(handle);
  ASSERT_TRUE(Normalize(Behind(handle)).ok());
  for (int i = 0; i < 10; ++i) {
    events_.Remake(handle);
    std::memset(allocation_.data, 0, kFileBytes);
    AsyncCall call(server_.stub(), Behind(handle));
    WaitForWaiting(1);
    while (events_.asked(handle) < 3) std::this_thread::yield();
    WriteX();
    events_.Reach(handle);
    ASSERT_TRUE(call.Wait().ok()) << call.Wait().error_message();
    EXPECT_EQ(OutputAt(allocation_, kY), expected);
  }
}

// The responses keep the order of the requests; a stream that ends takes along what waits.
TEST_F(DeviceEventTest, OnAStreamLaterRequestsAreComputedMeanwhile) {
  WriteX();
  const std::string expected = Expected(Plain());
  const std::string handle = events_.Make();
  {
    testing::InferStreamClient stream(server_.NewChannel());
    const double before = Computed();
    stream.Send(InferBehind(handle));
    stream.Send(testing::ToInfer(Plain()));
    while (Computed() < before + 1) std::this_thread::yield();
    EXPECT_EQ(server_.event_waits().waiting_requests(), 1) << "the first one";
    events_.Reach(handle);
    const auto first = stream.Read();
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(first->error_message(), "");
    EXPECT_EQ(first->infer_response().outputs(0).parameters().count("shared_memory_region"), 1U);
    const auto second = stream.Read();
    ASSERT_TRUE(second.has_value());
    EXPECT_EQ(second->infer_response().raw_output_contents(0), expected);
    EXPECT_EQ(OutputAt(allocation_, kY), expected);
    stream.Send(InferBehind(events_.Make()));
    WaitForWaiting(1);
    stream.Cancel();
  }
  server_.WaitIdle();
  EXPECT_EQ(server_.event_waits().waiting_requests(), 0);
}

TEST_F(DeviceEventTest, AStopWaitsForEventsAndGivesUpInTheEnd) {
  WriteX();
  const std::string soon = events_.Make();
  const std::string never = events_.Make();
  AsyncCall answered(server_.stub(), Behind(soon));
  AsyncCall given_up(server_.stub(), Behind(never));
  WaitForWaiting(2);
  GracefulStop stop({.lame_duck = Duration(0), .drain_timeout = milliseconds(300)},
                    server_.stop_parts());
  stop.Signal();
  std::thread running([&stop] { EXPECT_EQ(stop.Run(), GracefulStop::Outcome::kAborted); });
  events_.Reach(soon);
  EXPECT_TRUE(answered.Wait().ok()) << answered.Wait().error_message();
  EXPECT_EQ(given_up.Wait().error_code(), Code::UNAVAILABLE);
  running.join();
  EXPECT_EQ(server_.event_waits().waiting_requests(), 0);
}

struct EventsOnTheCpu : testing::RegionFixture {};

TEST_F(EventsOnTheCpu, AServerWithoutDevicesSaysSo) {
  v1::NormalizeRequest request = Plain();
  request.set_event_handle(std::string(kEventHandleBytes, 'h'));
  const grpc::Status status = Normalize(request);
  EXPECT_EQ(status.error_code(), Code::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("event_handle: this server takes no events"));
}

}  // namespace
}  // namespace normd
