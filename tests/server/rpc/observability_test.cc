// Request ids, the request log, and that clients cannot make series.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "nlohmann/json.hpp"
#include "server/accept/request_log.h"
#include "server/rpc/call_arrival.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"

namespace normd::testing {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kTraceParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

RequestIds Read(const std::string& key, const std::string& value) {
  return ReadRequestIds({{key, value}});
}

TEST(RequestIdsTest, TakesIdsThatAreFitToBeRepeated) {
  for (const std::string& id :
       {std::string("a"), std::string("8f14e45f-ceea-467f-9d3c-1f2b3c4d5e6f"),
        std::string("Root=1-67891233-abcdef012345678912345678"), std::string("AbC+/=="),
        std::string(kMaxRequestIdBytes, 'x')}) {
    EXPECT_EQ(Read("x-request-id", id).request_id, id);
  }
}

TEST(RequestIdsTest, IgnoresIdsThatAreNot) {
  for (const std::string& id :
       {std::string(), std::string("a b"), std::string("a\nb"), std::string("a\"b"),
        std::string("{\"a\":1}"), std::string("caf\xc3\xa9"), std::string("a\0b", 3),
        std::string(kMaxRequestIdBytes + 1, 'x')}) {
    EXPECT_EQ(Read("x-request-id", id).request_id, "") << id;
  }
}

TEST(RequestIdsTest, TheFirstOfSeveralCounts) {
  EXPECT_EQ(ReadRequestIds({{"x-request-id", "first"}, {"x-request-id", "second"}}).request_id,
            "first");
}

TEST(RequestIdsTest, ReadsTheTraceOfATraceParent) {
  const RequestIds ids = Read("traceparent", kTraceParent);
  EXPECT_EQ(ids.traceparent, kTraceParent);
  EXPECT_EQ(ids.trace_id(), "0af7651916cd43dd8448eb211c80319c");
  // A later version may carry more.
  const std::string later = absl::StrCat("01", std::string(kTraceParent).substr(2), "-more");
  EXPECT_EQ(Read("traceparent", later).trace_id(), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(RequestIds().trace_id(), "");
}

TEST(RequestIdsTest, IgnoresWhatIsNoTraceParent) {
  const std::string good = kTraceParent;
  const auto with = [&good](std::size_t at, const std::string& text) {
    return std::string(good).replace(at, text.size(), text);
  };
  for (const std::string& bad :
       {std::string(), good.substr(0, 54), good + "-more", with(0, "ff"), with(0, "0g"),
        with(2, "_"), with(35, "_"), with(52, "_"), with(3, "0AF7"), with(3, std::string(32, '0')),
        with(36, std::string(16, '0')), with(53, "x1"), "01" + good.substr(2) + "+more",
        "01" + good.substr(2) + "-\n"}) {
    EXPECT_EQ(Read("traceparent", bad).traceparent, "") << bad;
  }
}

TEST(RequestLogTest, PicksSlowRequestsAndOneInSoMany) {
  using Reason = RequestLog::Reason;
  const auto ignore = [](const std::string&) {};
  RequestLog slow({.slow_threshold = milliseconds(5)}, ignore);
  EXPECT_EQ(slow.Pick(milliseconds(5) - Duration(1)), Reason::kNone);
  EXPECT_EQ(slow.Pick(milliseconds(5)), Reason::kSlow);

  RequestLog sample({.sample_every = 3}, ignore);
  int sampled = 0;
  for (int i = 0; i < 30; ++i) sampled += sample.Pick(milliseconds(1)) == Reason::kSample ? 1 : 0;
  EXPECT_EQ(sampled, 10);

  RequestLog both({.slow_threshold = milliseconds(5), .sample_every = 1}, ignore);
  EXPECT_EQ(both.Pick(milliseconds(9)), Reason::kSlow);
  EXPECT_EQ(both.Pick(milliseconds(1)), Reason::kSample);
}

// Collects the lines of a request log.
class Lines {
 public:
  RequestLog::WriteLine Writer() {
    return [this](const std::string& line) {
      MutexLock lock(mutex_);
      lines_.push_back(line);
    };
  }
  std::vector<json> Parsed() const {
    MutexLock lock(mutex_);
    std::vector<json> parsed;
    for (const std::string& line : lines_) {
      parsed.push_back(json::parse(line, nullptr, /*allow_exceptions=*/false));
      EXPECT_TRUE(parsed.back().is_object()) << line;
      EXPECT_EQ(line.find('\n'), std::string::npos);
    }
    return parsed;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

grpc::Status Normalize(TestServer& server, const v1::NormalizeRequest& request,
                       grpc::ClientContext& context) {
  v1::NormalizeResponse response;
  return server.stub().Normalize(&context, request, &response);
}

TEST(ObservabilityTest, EveryResponseRepeatsTheIdsOfItsRequest) {
  TestServer server;
  for (const char* model : {"instance_norm_64", "no_such_model"}) {
    grpc::ClientContext context;
    context.AddMetadata("x-request-id", "id-1");
    context.AddMetadata("traceparent", kTraceParent);
    Normalize(server, MakeRequest(model, {1, 64, 2}), context);
    EXPECT_EQ(Trailing(context, "x-request-id"), "id-1") << model;
    EXPECT_EQ(Trailing(context, "traceparent"), kTraceParent) << model;
  }
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "id-2");
  v1::ListModelsResponse response;
  ASSERT_TRUE(server.stub().ListModels(&context, {}, &response).ok());
  EXPECT_EQ(Trailing(context, "x-request-id"), "id-2");
}

TEST(ObservabilityTest, RepeatsNoIdThatIsNotFitAndInventsNone) {
  TestServer server;
  grpc::ClientContext hostile;
  hostile.AddMetadata("x-request-id", "a\" b");
  hostile.AddMetadata("traceparent", "00-1-2-3");
  EXPECT_TRUE(Normalize(server, MakeRequest("instance_norm_64", {1, 64, 2}), hostile).ok());
  EXPECT_EQ(Trailing(hostile, "x-request-id"), "");
  EXPECT_EQ(Trailing(hostile, "traceparent"), "");
  grpc::ClientContext none;
  EXPECT_TRUE(Normalize(server, MakeRequest("instance_norm_64", {1, 64, 2}), none).ok());
  EXPECT_EQ(Trailing(none, "x-request-id"), "");
}

TEST(ObservabilityTest, ALineTellsWhereTheTimeOfASlowRequestWent) {
  Lines lines;
  RequestLog log({.slow_threshold = Duration(1)}, lines.Writer());
  TestServerOptions options;
  options.request_log = &log;
  TestServer server(options);
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "id-1");
  context.AddMetadata("traceparent", kTraceParent);
  ASSERT_TRUE(Normalize(server, MakeRequest("group_norm_64_8", {2, 64, 3}), context).ok());
  server.WaitIdle();

  const std::vector<json> parsed = lines.Parsed();
  ASSERT_EQ(parsed.size(), 1u);
  const json& line = parsed[0];
  EXPECT_EQ(line["reason"], "slow");
  EXPECT_EQ(line["request_id"], "id-1");
  EXPECT_EQ(line["trace_id"], "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(line["method"], "Normalize");
  EXPECT_EQ(line["model"], "group_norm_64_8");
  EXPECT_EQ(line["version"], 1);
  EXPECT_EQ(line["code"], "OK");
  EXPECT_EQ(line["lane"], "cpu:0");
  EXPECT_EQ(line["bytes"], 2 * 64 * 3 * 4);
  EXPECT_EQ(line["batch"]["requests"], 1);
  EXPECT_EQ(line["batch"]["bytes"], 2 * 64 * 3 * 4);
  EXPECT_GT(line["batch"]["id"], 0);
  EXPECT_THAT(line["peer"].get<std::string>(), StartsWith("ipv4:127.0.0.1:"));
  std::int64_t stages_ns = 0;
  for (const char* stage : {"decode", "queue", "compute", "encode"}) {
    EXPECT_GT(line["stages_ns"][stage], 0) << stage;
  }
  for (const json& ns : line["stages_ns"]) stages_ns += ns.get<std::int64_t>();
  EXPECT_LE(stages_ns, line["duration_ns"]);
}

TEST(ObservabilityTest, AStreamHasOneLineWithTheSumsOfItsPieces) {
  Lines lines;
  RequestLog log({.sample_every = 1}, lines.Writer());
  TestServerOptions options;
  options.request_log = &log;
  options.accept.stream.piece_bytes = 4096;
  TestServer server(options);
  const StreamResult result = NormalizeInChunks(
      server.stub(), MakeRequest("layer_norm_1024", {9, 1024}), [] { return std::size_t{5000}; });
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  server.WaitIdle();
  const std::vector<json> parsed = lines.Parsed();
  ASSERT_EQ(parsed.size(), 1u);
  EXPECT_EQ(parsed[0]["method"], "NormalizeStream");
  EXPECT_EQ(parsed[0]["model"], "layer_norm_1024");
  EXPECT_EQ(parsed[0]["code"], "OK");
  EXPECT_FALSE(parsed[0].contains("error"));
  EXPECT_EQ(parsed[0]["bytes"], 9 * 4096);
  EXPECT_EQ(parsed[0]["stages_ns"]["compute"], result.trailer->stages().compute_ns());
  EXPECT_GT(parsed[0]["batch"]["id"], 0);
}

TEST(ObservabilityTest, ALineOfARefusedRequestNamesNoModelThatTheClientInvented) {
  Lines lines;
  RequestLog log({.sample_every = 1}, lines.Writer());
  TestServerOptions options;
  options.request_log = &log;
  TestServer server(options);
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    EXPECT_FALSE(Normalize(server, MakeRequest("no_such_model", {1, 64, 2}), context).ok());
  }
  server.WaitIdle();
  const std::vector<json> parsed = lines.Parsed();
  ASSERT_EQ(parsed.size(), 2u);
  EXPECT_EQ(parsed[0]["reason"], "sample");
  EXPECT_EQ(parsed[0]["code"], "NOT_FOUND");
  EXPECT_THAT(parsed[0]["error"].get<std::string>(), HasSubstr("no_such_model"));
  EXPECT_EQ(parsed[0]["model"], "");
  EXPECT_FALSE(parsed[0].contains("trace_id"));
  EXPECT_THAT(parsed[0]["request_id"].get<std::string>(), StartsWith("normd-"));
  EXPECT_NE(parsed[0]["request_id"], parsed[1]["request_id"]);
}

TEST(ObservabilityTest, NothingThatClientsSendMakesSeries) {
  constexpr int kRounds = 200;
  TestServer server;
  const auto send = [&server](const std::string& model, std::int64_t version) {
    grpc::ClientContext normalize;
    normalize.AddMetadata("x-request-id", absl::StrCat("id-", version));
    v1::NormalizeRequest request = MakeRequest(model, {1, 64, 1});
    request.set_version(version);
    EXPECT_FALSE(Normalize(server, request, normalize).ok());
    grpc::ClientContext get;
    v1::GetModelRequest wanted;
    wanted.set_model(model);
    wanted.set_version(version);
    v1::GetModelResponse got;
    EXPECT_FALSE(server.stub().GetModel(&get, wanted, &got).ok());
  };
  const auto send_all = [&send](int i) {
    send(absl::StrCat("bogus_", i), 0);
    send(absl::StrCat("not a name/", i), 0);
    send("instance_norm_64", 1000 + i);
  };
  send_all(0);
  server.WaitIdle();
  const std::size_t series = server.SeriesCount();
  ASSERT_GT(series, 100u);
  for (int i = 1; i <= kRounds; ++i) send_all(i);
  server.WaitIdle();
  EXPECT_EQ(server.SeriesCount(), series);
  EXPECT_GE(server.Metric("normd_requests_total{model=\"\",version=\"\",method=\"Normalize\","
                          "code=\"NOT_FOUND\"}"),
            2 * (kRounds + 1));
}

}  // namespace
}  // namespace normd::testing
