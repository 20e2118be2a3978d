// A front end without a protocol: what AcceptRequest makes of a description.

#include "server/accept/accept.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/metrics/metrics.h"
#include "tests/server/identity/identity_files.h"
#include "tests/support/fake_clock.h"
#include "tests/support/models.h"
#include "tests/support/temp_folder.h"

namespace normd {
namespace {

using ::testing::HasSubstr;

class AcceptTest : public ::testing::Test {
 protected:
  AcceptTest() {
    Add("rows", "instance_norm { channels: 2 affine: false }");
    Add("add", "add_rms_norm { normalized_shape: 4 affine: false }");
    EXPECT_TRUE(registry_.LoadAll().ok());
  }
  ~AcceptTest() override { queue_.Close(); }

  void Add(const std::string& model, const std::string& config) const {
    std::filesystem::create_directories(folder_.File(model + "/1"));
    folder_.Write(model + "/config.textproto", config);
  }
  CallArrival Arrival() {
    CallArrival arrival;
    arrival.at = clock_.Now();
    arrival.caller = accept_.callers.Find("ipv4:192.0.2.1:4711");
    arrival.deadline = clock_.Now() + std::chrono::seconds(3);
    return arrival;
  }
  // Two samples of two rows of two elements.
  RequestDescription Describe() {
    RequestDescription request;
    request.model = "rows";
    InputDescription& input = request.inputs.emplace_back();
    input.shape = {2, 2, 2};
    input.data.views.push_back(BytesOf(x_));
    input.data_bytes = sizeof(x_);
    return request;
  }
  template <typename Values>
  static MutableBytes BytesOf(Values& values) {
    return {reinterpret_cast<std::byte*>(values.data()), sizeof(values)};
  }
  std::string Refusal(const RequestDescription& request) {
    CallContext call(accept_, Arrival());
    AcceptedRequest accepted;
    return std::string(AcceptRequest(accept_, call, request, accepted).message());
  }

  FakeClock clock_;
  Metrics metrics_;
  NoBackend backend_;
  const testing::TempFolder folder_;
  ModelRegistry registry_{{.roots = {folder_.path()}, .on_change = {}}, backend_, metrics_, clock_};
  Admission admission_{{}, metrics_};
  BatchQueue queue_{{}, clock_};
  AcceptEnvironment accept_{{}, registry_, admission_, queue_, metrics_, clock_};
  std::array<float, 8> x_{};
  std::array<float, 8> y_{};
};

TEST_F(AcceptTest, TheQueueGetsWhatTheRequestSays) {
  CallContext call(accept_, Arrival());
  RequestDescription description = Describe();
  description.priority = Priority::kHigh;
  description.queue_timeout_ns = 5;
  AcceptedRequest accepted;
  const absl::Status status = AcceptRequest(accept_, call, description, accepted);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(admission_.inflight_requests(), 1);
  EXPECT_EQ(admission_.inflight_bytes(), 64) << "the input and the output";
  const std::unique_ptr<Request> request =
      MakeRequest(accept_, call, accepted, accepted.geometry());
  EXPECT_EQ(request->model->name(), "rows");
  EXPECT_EQ(request->priority, Priority::kHigh);
  EXPECT_EQ(request->queue_timeout, Duration(5));
  EXPECT_EQ(request->deadline, call.deadline());
  EXPECT_EQ(request->geometry.rows, 4);
  EXPECT_EQ(request->holder, call.caller()->peer->id);
  EXPECT_NE(request->holder, 0U);
  EXPECT_TRUE(request->outputs.empty());
  EXPECT_NE(MakeRequest(accept_, call, accepted, accepted.geometry())->id, request->id);
  EXPECT_FALSE(request->IsCancelled());
  call.Cancel();
  EXPECT_TRUE(request->IsCancelled());
}

TEST_F(AcceptTest, AnAliasNamesItsVersionAndACanaryTakesItsShare) {
  for (const char* version : {"1", "2"}) {
    std::filesystem::create_directories(folder_.File(std::string("two/") + version));
  }
  folder_.Write("two/config.textproto",
                "instance_norm { channels: 2 affine: false } canary { version: 2 percent: 25 } "
                "version_alias { name: \"stable\" version: 1 }");
  ASSERT_TRUE(registry_.Load("two", 0).ok());
  RequestDescription description = Describe();
  description.model = "two";
  const auto version = [&] {
    CallContext call(accept_, Arrival());
    AcceptedRequest accepted;
    const absl::Status status = AcceptRequest(accept_, call, description, accepted);
    EXPECT_TRUE(status.ok()) << status;
    return status.ok() ? call.model()->version() : 0;
  };
  int canary = 0;
  for (int i = 0; i < 40; ++i) canary += version() == 2 ? 1 : 0;
  EXPECT_EQ(canary, 10);
  description.version_alias = "stable";
  for (int i = 0; i < 8; ++i) EXPECT_EQ(version(), 1);
  description.version_alias = "old";
  EXPECT_EQ(Refusal(description),
            "model: two has no version \"old\"; known versions: 1, 2; names: stable (1)");
  description.version_alias = "";
  description.version = 2;
  for (int i = 0; i < 8; ++i) EXPECT_EQ(version(), 2);
}

TEST_F(AcceptTest, AnOutputGoesToTheMemoryThatTheRequestNames) {
  CallContext call(accept_, Arrival());
  RequestDescription description = Describe();
  description.outputs.push_back({"", {BytesOf(y_), {MemoryKind::kPinned}}});
  AcceptedRequest accepted;
  const absl::Status status = AcceptRequest(accept_, call, description, accepted);
  ASSERT_TRUE(status.ok()) << status;
  const std::unique_ptr<Request> request =
      MakeRequest(accept_, call, accepted, accepted.geometry());
  ASSERT_EQ(request->outputs.size(), 3U) << "with mean and rstd, which it does not ask for";
  EXPECT_EQ(request->outputs[0].bytes.data(), BytesOf(y_).data());
  EXPECT_EQ(request->outputs[0].place.kind, MemoryKind::kPinned);
  // The lane has written it there, so the response brings no buffer.
  Completion completion;
  completion.outputs.resize(3);
  const auto response = MakeResponse(call, accepted, completion);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->outputs[0].bytes, 32);
  EXPECT_EQ(response->outputs[0].data.size(), 0U);
}

TEST_F(AcceptTest, NamesWhatIsWrongWithTheMemoryOfAnOutput) {
  const MutableBytes bytes = BytesOf(y_);
  const auto refusal = [&](std::vector<WantedOutput> outputs) {
    RequestDescription request = Describe();
    request.outputs.assign(outputs.begin(), outputs.end());
    return Refusal(request);
  };
  EXPECT_THAT(refusal({{"q", {bytes, {}}}}), HasSubstr("outputs[0].name: \"q\", wanted"));
  EXPECT_THAT(refusal({{"", {bytes, {}}}, {"", {bytes, {}}}}), HasSubstr("outputs[1].name"));
  EXPECT_THAT(refusal({{"", {bytes.subspan(0, 28), {}}}}),
              HasSubstr("outputs[0]: memory of 28 bytes, wanted 32"));
  std::array<std::byte, 64> raw{};
  const std::size_t odd = reinterpret_cast<std::uintptr_t>(raw.data()) % 4 == 1 ? 2 : 1;
  EXPECT_THAT(refusal({{"", {MutableBytes(raw.data() + odd, 32), {}}}}),
              HasSubstr("not aligned to float32"));
  EXPECT_EQ(refusal({{"", {bytes, {}}}}), "");
  EXPECT_EQ(admission_.inflight_requests(), 0);
}

// Each of several outputs may be named, in any order; the others come as buffers.
TEST_F(AcceptTest, EachOfSeveralOutputsGoesWhereTheRequestSays) {
  RequestDescription description = Describe();
  description.model = "add";
  description.inputs[0].name = "x";
  description.inputs[0].shape = {2, 4};
  description.inputs.push_back(description.inputs[0]);
  description.inputs[1].name = "residual";
  const MemoryPlace pinned{MemoryKind::kPinned};
  {
    CallContext call(accept_, Arrival());
    description.outputs.push_back({"residual_out", {BytesOf(y_), pinned}});
    AcceptedRequest accepted;
    const absl::Status status = AcceptRequest(accept_, call, description, accepted);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(admission_.inflight_bytes(), 128) << "two inputs and two outputs";
    const auto request = MakeRequest(accept_, call, accepted, accepted.geometry());
    ASSERT_EQ(request->outputs.size(), 3U) << "with rstd, which it does not ask for";
    EXPECT_TRUE(request->outputs[0].bytes.empty());
    EXPECT_EQ(request->outputs[1].bytes.data(), BytesOf(y_).data());
    Completion completion;
    completion.outputs.resize(3);
    EXPECT_THAT(std::string(MakeResponse(call, accepted, completion).status().message()),
                HasSubstr("output \"y\": 0 bytes, wanted 32"));
  }
  description.outputs.push_back({"y", {BytesOf(x_), {}}});
  EXPECT_EQ(Refusal(description), "");
  description.outputs[1].name = "residual_out";
  EXPECT_EQ(Refusal(description), "outputs[1].name: \"residual_out\" twice, wanted each name once");
  description.outputs[1].name = "";
  EXPECT_EQ(Refusal(description),
            "outputs[1].name: \"\", wanted \"y\" and \"residual_out\" and \"rstd\"");
}

TEST_F(AcceptTest, ADecodersOwnErrorsComeInTheirTurn) {
  RequestDescription request = Describe();
  request.priority = absl::InvalidArgumentError("urgency: 11");
  EXPECT_EQ(Refusal(request), "urgency: 11");
  request.inputs[0].dtype = absl::InvalidArgumentError("datatype: FP8");
  EXPECT_EQ(Refusal(request), "datatype: FP8");
  request.model = "nothing";
  EXPECT_THAT(Refusal(request), HasSubstr("model: nothing"));
}

TEST_F(AcceptTest, AChunkedRequestHoldsNothingBeforeItsChunks) {
  CallContext call(accept_, Arrival());
  RequestDescription request = Describe();
  request.in_chunks = true;
  EXPECT_THAT(Refusal(request), HasSubstr("data: 32 bytes in the header"));
  request.inputs[0].data = {};
  request.inputs[0].data_bytes = 0;
  AcceptedRequest accepted;
  const absl::Status status = AcceptRequest(accept_, call, request, accepted);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(accepted.stream.has_value());
  EXPECT_EQ(admission_.inflight_bytes(), 0);
  EXPECT_EQ(admission_.chunk_bytes(), 64);
}

// The server's copy of a deadline is later than the client's by the header's rounding, up to three
// digits of the time limit, and by the milliseconds until the server reads it.
TEST(CallContextTest, WhoLeavesAtTheDeadlineOfItsOwnClockIsLateAndWhoLeavesHalfwayIsNot) {
  using std::chrono::milliseconds;
  const TimePoint sent = TimePoint(std::chrono::hours(5));
  for (std::int64_t ms = 2; ms < 24 * 3600 * 1000; ms += 1 + ms / 97) {
    const Duration limit = milliseconds(ms);
    std::int64_t unit = 1;
    while (ms > 999 * unit) unit *= 10;
    const Duration in_header = milliseconds((ms + unit - 1) / unit * unit);
    for (const auto delay : {milliseconds(0), milliseconds(ms > 400 ? 90 : ms / 5)}) {
      const TimePoint arrival = sent + delay;
      const TimePoint deadline = arrival + in_header;
      EXPECT_TRUE(LeftAtDeadline(arrival, deadline, sent + limit)) << ms;
      EXPECT_TRUE(LeftAtDeadline(arrival, deadline, deadline + limit)) << ms;
      EXPECT_FALSE(LeftAtDeadline(arrival, deadline, sent + limit / 2)) << ms;
      EXPECT_FALSE(LeftAtDeadline(arrival, kNever, sent + limit)) << ms;
    }
  }
}

TEST_F(AcceptTest, ACallIsActiveUntilItsContextGoes) {
  {
    CallContext call(accept_, Arrival());
    EXPECT_EQ(accept_.active.count(), 1);
    EXPECT_EQ(call.End(absl::UnknownError("a secret")).message(),
              "the server failed to compute this; its log says why");
    EXPECT_EQ(call.code(), absl::StatusCode::kInternal);
    clock_.Advance(std::chrono::milliseconds(7));
    EXPECT_EQ(call.Record(), std::chrono::milliseconds(7));
  }
  EXPECT_EQ(accept_.active.count(), 0);
}

// With a policy: the identity "u" may use "rows", at most three requests and 200 bytes at once.
class AcceptWithPolicyTest : public AcceptTest {
 protected:
  AcceptWithPolicyTest() {
    folder_.Write("policy", R"(
      role { name: "user" infer: "rows" infer: "not_loaded" }
      identity { name: "u" role: "user" token: "u"
                 limits { concurrent_calls: 3 bytes_in_flight: 200 } }
      identity { name: "v" role: "user" token: "v" })");
    testing::WriteTokens(folder_, "uv");
    access_ = *Access::Create({folder_.File("policy"), folder_.File("tokens")}, accept_.callers,
                              metrics_);
    authorizer_ = std::make_unique<Authorizer>(
        AuthorizerOptions{AdminCalls::kAll, access_.get(), nullptr}, clock_);
    accept_.authorizer = authorizer_.get();
  }

  CallArrival ArrivalOf(char letter) {
    const std::string bearer = testing::BearerOf(letter);
    PeerCredentials credentials;
    credentials.authorization = bearer;
    CallArrival arrival = Arrival();
    arrival.identity = authorizer_->Recognise(credentials);
    return arrival;
  }
  absl::Status Accept(CallContext& call, const RequestDescription& request) {
    AcceptedRequest accepted;
    return AcceptRequest(accept_, call, request, accepted);
  }

  testing::SecretFolder folder_;
  std::unique_ptr<Access> access_;
  std::unique_ptr<Authorizer> authorizer_;
};

// Whatever else is wrong with a request, and whether or not the model is there, who may not is told
// just that.
TEST_F(AcceptWithPolicyTest, ARefusalTellsNothingOfModelsOrTensors) {
  std::vector<RequestDescription> requests(6, Describe());
  requests[1].inputs.clear();
  requests[2].inputs[0].shape = {-1};
  requests[3].version = 77;
  requests[4].priority = absl::InvalidArgumentError("priority");
  requests[5].in_chunks = true;
  for (const char letter : {'u', 'x'}) {
    std::string first;
    for (const std::string model : {"add", "gone", "no model's name"}) {
      for (RequestDescription& request : requests) {
        request.model = model;
        CallContext call(accept_, ArrivalOf(letter));
        const absl::Status status = Accept(call, request);
        EXPECT_EQ(status.code(), letter == 'u' ? absl::StatusCode::kPermissionDenied
                                               : absl::StatusCode::kUnauthenticated);
        std::string words(status.message());
        if (const std::size_t name = words.find(model); name != std::string::npos) {
          words.replace(name, model.size(), "M");
        }
        if (first.empty()) first = words;
        EXPECT_EQ(words, first) << model;
        EXPECT_EQ(call.model(), nullptr) << "and no model's series counts it";
      }
    }
  }
  EXPECT_EQ(admission_.inflight_requests(), 0);
}

// Memory that ends the process when anything of it is read or written.
class Untouchable {
 public:
  Untouchable() : begin_(mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_NE(begin_, MAP_FAILED);
  }
  ~Untouchable() { munmap(begin_, kBytes); }
  Untouchable(const Untouchable&) = delete;
  Untouchable& operator=(const Untouchable&) = delete;

  template <typename T>
  T& As() const {
    static_assert(sizeof(T) <= kBytes);
    return *static_cast<T*>(begin_);
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 16;
  void* const begin_;
};

// The work of a refusal cannot depend on which models there are, for it looks at none: here no
// look-up in the registry survives.
TEST_F(AcceptWithPolicyTest, ARefusedCallNeverAsksTheRegistry) {
  const Untouchable memory;
  AcceptEnvironment accept{{}, memory.As<ModelRegistry>(), admission_, queue_, metrics_, clock_};
  accept.authorizer = authorizer_.get();
  const auto judge = [&](char letter, const std::string& model) {
    CallContext call(accept, ArrivalOf(letter));
    RequestDescription request = Describe();
    request.model = model;
    AcceptedRequest accepted;
    return AcceptRequest(accept, call, request, accepted).code();
  };
  for (const char* model : {"add", "gone", ""}) {
    EXPECT_EQ(judge('u', model), absl::StatusCode::kPermissionDenied) << model;
    EXPECT_EQ(judge('x', model), absl::StatusCode::kUnauthenticated) << model;
  }
  EXPECT_EQ(judge('x', "rows"), absl::StatusCode::kUnauthenticated);
  // Who may is looked up for, which shows that the memory does notice.
  EXPECT_DEATH(judge('u', "rows"), "");
}

TEST_F(AcceptWithPolicyTest, WhoMayInferWithAModelLearnsThatItIsNotThere) {
  CallContext call(accept_, ArrivalOf('u'));
  RequestDescription request = Describe();
  request.model = "not_loaded";
  EXPECT_EQ(Accept(call, request).code(), absl::StatusCode::kNotFound);
}

TEST_F(AcceptWithPolicyTest, TheQueueCountsTheIdentityWhateverItsConnections) {
  CallContext one(accept_, ArrivalOf('u'));
  CallArrival elsewhere = ArrivalOf('u');
  elsewhere.caller = accept_.callers.Find("ipv4:198.51.100.7:1");
  CallContext two(accept_, std::move(elsewhere));
  CallContext other(accept_, ArrivalOf('v'));
  AcceptedRequest first, second, third;
  ASSERT_TRUE(AcceptRequest(accept_, one, Describe(), first).ok());
  ASSERT_TRUE(AcceptRequest(accept_, two, Describe(), second).ok());
  ASSERT_TRUE(AcceptRequest(accept_, other, Describe(), third).ok());
  const auto holder = [&](CallContext& call, const AcceptedRequest& accepted) {
    return MakeRequest(accept_, call, accepted, accepted.geometry())->holder;
  };
  EXPECT_EQ(holder(one, first), holder(two, second));
  EXPECT_NE(holder(one, first), holder(other, third));
  EXPECT_NE(holder(one, first), one.caller()->peer->id);
}

TEST_F(AcceptWithPolicyTest, AnIdentitysLimitsBoundWhatItHasInside) {
  CallContext call(accept_, ArrivalOf('u'));
  std::vector<AcceptedRequest> inside(3);
  for (AcceptedRequest& accepted : inside) {
    ASSERT_TRUE(AcceptRequest(accept_, call, Describe(), accepted).ok()) << "64 bytes each";
  }
  AcceptedRequest more;
  const absl::Status refused = AcceptRequest(accept_, call, Describe(), more);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("this identity has 3 and may have 3"));
  CallContext other(accept_, ArrivalOf('v'));
  EXPECT_TRUE(AcceptRequest(accept_, other, Describe(), more).ok());
  inside.pop_back();
  AcceptedRequest again;
  EXPECT_TRUE(AcceptRequest(accept_, call, Describe(), again).ok());
}

TEST_F(AcceptWithPolicyTest, ANewPolicysLimitHoldsAtOnce) {
  CallContext call(accept_, ArrivalOf('u'));
  AcceptedRequest first;
  ASSERT_TRUE(AcceptRequest(accept_, call, Describe(), first).ok());
  folder_.Write("policy", R"(role { name: "user" infer: "*" }
      identity { name: "u" role: "user" token: "u" limits { bytes_in_flight: 100 } })");
  ASSERT_TRUE(access_->CheckFiles().ok());
  CallContext next(accept_, ArrivalOf('u'));
  AcceptedRequest second;
  const absl::Status refused = AcceptRequest(accept_, next, Describe(), second);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("this identity has 64 and may have 100"));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  folder_.Write("policy", R"(role { name: "user" infer: "*" }
      identity { name: "u" role: "user" token: "u" limits { bytes_in_flight: 63 } })");
  ASSERT_TRUE(access_->CheckFiles().ok());
  CallContext last(accept_, ArrivalOf('u'));
  EXPECT_EQ(AcceptRequest(accept_, last, Describe(), second).code(),
            absl::StatusCode::kInvalidArgument)
      << "no retry will help";
}

}  // namespace
}  // namespace normd
