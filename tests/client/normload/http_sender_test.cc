// The load run's sender over HTTP, against a server on loopback that says what the test wants.

#include "client/normload/http_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "boost/asio/buffer.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/read.hpp"
#include "boost/asio/read_until.hpp"
#include "boost/asio/write.hpp"
#include "client/normload/http_message.h"
#include "nlohmann/json.hpp"

namespace normd::load {
namespace {

namespace asio = boost::asio;
using ::testing::HasSubstr;
using ::testing::StartsWith;

ConstBytes BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// Head and body of a request.
struct Request {
  std::string head;
  std::string body;
};

std::optional<Request> ReadRequest(asio::ip::tcp::socket& socket, std::string& buffer) {
  boost::system::error_code error;
  const std::size_t head =
      asio::read_until(socket, asio::dynamic_buffer(buffer), "\r\n\r\n", error);
  if (error) return std::nullopt;
  Request request;
  request.head = buffer.substr(0, head);
  buffer.erase(0, head);
  const std::string name = "Content-Length: ";
  std::size_t bytes = 0;
  const std::size_t at = request.head.find(name) + name.size();
  EXPECT_TRUE(
      absl::SimpleAtoi(request.head.substr(at, request.head.find("\r\n", at) - at), &bytes));
  if (buffer.size() < bytes) {
    asio::read(socket, asio::dynamic_buffer(buffer), asio::transfer_exactly(bytes - buffer.size()),
               error);
  }
  request.body = buffer.substr(0, bytes);
  buffer.erase(0, bytes);
  return request;
}

// Answers each request with the text that a function gives; an empty one ends the connection.
class Server {
 public:
  using Answer = std::function<std::string(const Request&)>;

  explicit Server(Answer answer)
      : acceptor_(io_, {asio::ip::address_v4::loopback(), 0}), answer_(std::move(answer)) {
    accepting_ = std::thread([this] { Accept(); });
  }
  ~Server() {
    ended_ = true;
    boost::system::error_code ignored;
    asio::ip::tcp::socket last(io_);  // Wakes the thread that accepts.
    last.connect(acceptor_.local_endpoint(), ignored);
    accepting_.join();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string address() const {
    return absl::StrCat("127.0.0.1:", acceptor_.local_endpoint().port());
  }
  int connections() const { return connections_; }

 private:
  void Accept() {
    while (true) {
      asio::ip::tcp::socket socket(io_);
      boost::system::error_code error;
      acceptor_.accept(socket, error);
      if (error || ended_) return;
      ++connections_;
      threads_.emplace_back([this, socket = std::move(socket)]() mutable { Serve(socket); });
    }
  }

  void Serve(asio::ip::tcp::socket& socket) {
    std::string buffer;
    while (const std::optional<Request> request = ReadRequest(socket, buffer)) {
      const std::string answer = answer_(*request);
      boost::system::error_code error;
      asio::write(socket, asio::buffer(answer), error);
      if (error || answer.empty() || absl::StrContains(answer, "Connection: close")) return;
    }
  }

  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_;
  const Answer answer_;
  std::atomic<bool> ended_{false};
  std::atomic<int> connections_{0};
  std::vector<std::thread> threads_;
  std::thread accepting_;
};

std::string Response(const std::string& status, const std::string& body,
                     std::size_t json_bytes = 0) {
  return absl::StrCat(
      "HTTP/1.1 ", status, "\r\nContent-Length: ", body.size(), "\r\n",
      json_bytes > 0 ? absl::StrCat("Inference-Header-Content-Length: ", json_bytes, "\r\n") : "",
      "\r\n", body);
}

// What a server that returns its input as the output "y" answers.
std::string Echo(const Request& request, const std::string& version = "1") {
  const std::string name = "Inference-Header-Content-Length: ";
  const std::size_t at = request.head.find(name) + name.size();
  std::size_t bytes = 0;
  EXPECT_TRUE(
      absl::SimpleAtoi(request.head.substr(at, request.head.find("\r\n", at) - at), &bytes));
  const auto sent = nlohmann::json::parse(request.body.substr(0, bytes));
  nlohmann::json output = sent["inputs"][0];
  output["name"] = "y";
  const std::string text =
      nlohmann::json{{"model_name", "m"}, {"model_version", version}, {"outputs", {output}}}.dump();
  return Response("200 OK", text + request.body.substr(bytes), text.size());
}

class HttpSenderTest : public ::testing::Test {
 protected:
  static Workload MakeWorkload(const std::string& mix) {
    return *Workload::Create(*ParseMix(mix), 1);
  }
  static std::unique_ptr<HttpSender> Connect(const Workload& workload, const Server& server,
                                             int connections = 1,
                                             std::vector<Expectation> expectations = {}) {
    HttpSenderOptions options;
    options.address = server.address();
    options.connections = connections;
    options.timeout = std::chrono::seconds(30);
    auto sender = HttpSender::Create(workload, std::move(expectations), options, kClock);
    EXPECT_TRUE(sender.ok()) << sender.status();
    return sender.ok() ? *std::move(sender) : nullptr;
  }
  static std::future<Outcome> Send(HttpSender& sender, const Item& item, Outgoing outgoing = {}) {
    outgoing.item = &item;
    std::promise<Outcome> told;
    std::future<Outcome> outcome = told.get_future();
    sender.Send(outgoing,
                [told = std::move(told)](const Outcome& one) mutable { told.set_value(one); });
    return outcome;
  }

  inline static const SteadyClock kClock{};
};

TEST_F(HttpSenderTest, ARequestHasItsTensorsBehindItsJson) {
  const Workload workload =
      MakeWorkload("norm:2x4:f16:priority=high:queue_timeout=1500us:outputs=y+mean:z=3");
  const Item& item = workload.items()[0];
  const std::string text = HttpRequestText(item, 7, "host:1", "A: b\r\n");
  EXPECT_THAT(text,
              StartsWith("POST /v2/models/norm/versions/7/infer HTTP/1.1\r\nHost: host:1\r\n"));
  const std::string json = text.substr(text.find("\r\n\r\n") + 4);
  EXPECT_THAT(text, HasSubstr(absl::StrCat("\r\nContent-Length: ", json.size() + 16 + 6, "\r\n")));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("-Content-Length: ", json.size(), "\r\nA: b\r\n\r\n{")));
  EXPECT_EQ(nlohmann::json::parse(json), nlohmann::json::parse(R"({
      "inputs": [{"name": "x", "datatype": "FP16", "shape": [2, 4],
                  "parameters": {"binary_data_size": 16}},
                 {"name": "z", "datatype": "FP16", "shape": [3],
                  "parameters": {"binary_data_size": 6}}],
      "outputs": [{"name": "y"}, {"name": "mean"}],
      "parameters": {"binary_data_output": true, "priority": 1, "timeout": 1500}})"));
}

TEST_F(HttpSenderTest, OutputsAreReadOrTheReasonIsTold) {
  const auto read = [](const std::string& text, const std::string& tensors, std::size_t extra = 0) {
    return ReadHttpOutputs(BytesOf(text + tensors), text.size() + extra);
  };
  const std::string head =
      R"({"model_version": "3", "outputs": [{"name": "y", "datatype": "FP32",)";
  const std::string good = head + R"("shape": [2], "parameters": {"binary_data_size": 8}}]})";
  const auto outputs = read(good, "12345678");
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(outputs->version, 3);
  EXPECT_EQ(outputs->specs[0].name, "y");
  EXPECT_EQ(outputs->bytes[0].size(), 8);
  for (const auto& [text, tensors] : std::vector<std::pair<std::string, std::string>>{
           {good, "1234567"},
           {good, "123456789"},
           {good, ""},
           {"", ""},
           {"[]", ""},
           {"{", ""},
           {R"({"outputs": []})", ""},
           {R"({"model_version": 3, "outputs": []})", ""},
           {R"({"model_version": "x", "outputs": []})", ""},
           {head + R"("shape": [3], "parameters": {"binary_data_size": 8}}]})", "12345678"},
           {head + R"("shape": [-2], "parameters": {"binary_data_size": 8}}]})", "12345678"},
           {head + R"("shape": ["2"], "parameters": {"binary_data_size": 8}}]})", "12345678"},
           {head + R"("shape": [2], "parameters": {"binary_data_size": -8}}]})", "12345678"},
           {head + R"("shape": [2], "data": [1, 2]}]})", ""}}) {
    const auto refused = read(text, tensors);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInternal) << text;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("not an inference response: "));
  }
  EXPECT_FALSE(read(good, "", 1).ok());
}

TEST_F(HttpSenderTest, ErrorsHaveTheCodeOfTheStatusAndTheServersText) {
  const auto error = [](unsigned status, const std::string& body) {
    return HttpError(status, BytesOf(body));
  };
  EXPECT_EQ(error(404, R"({"error": "no \"m\""})"), absl::NotFoundError("no \"m\""));
  EXPECT_EQ(error(429, R"({"error": "later"})"), absl::ResourceExhaustedError("later"));
  EXPECT_EQ(error(503, "<html>"), absl::UnavailableError("HTTP status 503"));
  EXPECT_EQ(error(500, R"({"error": 7})"), absl::InternalError("HTTP status 500"));
  EXPECT_EQ(error(302, ""), absl::UnknownError("HTTP status 302"));
}

TEST_F(HttpSenderTest, KeepsItsConnectionAndVerifies) {
  Server server([](const Request& request) { return Echo(request); });
  const Workload workload = MakeWorkload("m:1x4");
  const Item& item = workload.items()[0];
  Expectation right{1, {}};
  right.outputs.resize(1);
  right.outputs[0].spec = item.inputs[0].spec("y");
  const auto* x = reinterpret_cast<const float*>(item.inputs[0].bytes().data());
  right.outputs[0].elements.assign(x, x + 4);
  Outgoing verified;
  verified.verify = true;
  auto sender = Connect(workload, server, 1, {right});
  ASSERT_NE(sender, nullptr);
  for (int i = 0; i < 20; ++i) {
    const Outcome outcome = Send(*sender, item, verified).get();
    EXPECT_EQ(outcome.code, absl::StatusCode::kOk) << outcome.message;
    EXPECT_EQ(outcome.verdict, Verdict::kRight) << outcome.message;
    EXPECT_EQ(outcome.output_bytes, 16);
  }
  EXPECT_EQ(Send(*sender, item).get().verdict, Verdict::kUnchecked);
  EXPECT_EQ(server.connections(), 1);

  Expectation wrong = right;
  wrong.outputs[0].elements[2] += 1;
  HttpSenderOptions options;
  options.address = server.address();
  EXPECT_EQ(HttpSender::Create(workload, {wrong}, options, kClock).status().code(),
            absl::StatusCode::kDataLoss);
  wrong.version = 2;  // Responses of another version are not checked.
  EXPECT_NE(Connect(workload, server, 1, {wrong}), nullptr);
}

TEST_F(HttpSenderTest, CallsBeyondItsConnectionsWait) {
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  Server server([&](const Request& request) {
    const int now = ++inside;
    int seen = most;
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
    std::this_thread::yield();
    --inside;
    return Echo(request);
  });
  const Workload workload = MakeWorkload("m:1x4,m:1x64");
  auto sender = Connect(workload, server, 3);
  ASSERT_NE(sender, nullptr);
  std::vector<std::future<Outcome>> outcomes;
  for (int i = 0; i < 200; ++i) {
    outcomes.push_back(Send(*sender, workload.items()[static_cast<std::size_t>(i) % 2]));
  }
  for (auto& outcome : outcomes) EXPECT_EQ(outcome.get().code, absl::StatusCode::kOk);
  EXPECT_LE(most, 3);
  EXPECT_LE(server.connections(), 3);
}

// One connection: no call leaves before the response to the one before it has come.
TEST_F(HttpSenderTest, TellsWhenACallThatWaitedHasLeft) {
  Server server([](const Request& request) { return Echo(request); });
  const Workload workload = MakeWorkload("m:1x4");
  auto sender = Connect(workload, server, 1);
  ASSERT_NE(sender, nullptr);
  std::vector<std::future<Outcome>> outcomes;
  for (int i = 0; i < 50; ++i) outcomes.push_back(Send(*sender, workload.items()[0]));
  TimePoint before{};
  for (auto& future : outcomes) {
    const Outcome outcome = future.get();
    ASSERT_TRUE(outcome.sent.has_value());
    EXPECT_GE(*outcome.sent, before);
    EXPECT_GE(outcome.received, *outcome.sent);
    before = outcome.received;
  }
}

TEST_F(HttpSenderTest, ACallFailsWithItsConnectionAndTheNextOpensAnother) {
  std::atomic<int> calls{0};
  Server server([&](const Request& request) -> std::string {
    switch (++calls) {
      case 2: return "";  // Without a word.
      case 4:
        return "HTTP/1.1 200 OK\r\nConnection: close\r\n"  // In the middle.
               "Content-Length: 9\r\n\r\nhalf";
      case 6: return "SSH-2.0\r\n\r\nConnection: close";
      case 8: return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
      default: return Echo(request);
    }
  });
  const Workload workload = MakeWorkload("m:1x4");
  auto sender = Connect(workload, server);  // The first call.
  ASSERT_NE(sender, nullptr);
  for (const absl::StatusCode wanted :
       {absl::StatusCode::kUnavailable, absl::StatusCode::kOk, absl::StatusCode::kUnavailable,
        absl::StatusCode::kOk, absl::StatusCode::kUnavailable, absl::StatusCode::kOk,
        absl::StatusCode::kInternal}) {
    EXPECT_EQ(Send(*sender, workload.items()[0]).get().code, wanted) << calls;
  }
}

TEST_F(HttpSenderTest, ARefusalKeepsTheConnection) {
  std::atomic<int> calls{0};
  Server server([&](const Request& request) {
    return ++calls % 2 == 0 ? Response("404 Not Found", R"({"error": "model: gone"})")
                            : Echo(request);
  });
  const Workload workload = MakeWorkload("m:1x4");
  auto sender = Connect(workload, server);
  ASSERT_NE(sender, nullptr);
  const Outcome refused = Send(*sender, workload.items()[0]).get();
  EXPECT_EQ(refused.code, absl::StatusCode::kNotFound);
  EXPECT_EQ(refused.message, "model: gone");
  EXPECT_EQ(Send(*sender, workload.items()[0]).get().code, absl::StatusCode::kOk);
  EXPECT_EQ(server.connections(), 1);
}

TEST_F(HttpSenderTest, DeadlinesAndCancellationsEndACallThatIsNotAnswered) {
  std::atomic<int> calls{0};
  std::promise<void> over;
  const std::shared_future<void> ended = over.get_future().share();
  Server server([&](const Request& request) {
    if (++calls > 1) ended.wait();
    return Echo(request);
  });
  Workload workload = MakeWorkload("m:1x4,m:1x4:timeout=20ms");
  const Workload first = MakeWorkload("m:1x4");
  {
    auto sender = Connect(first, server);
    ASSERT_NE(sender, nullptr);
    Outgoing cancelled;
    cancelled.cancel_after = std::chrono::milliseconds(5);
    const Outcome outcome = Send(*sender, workload.items()[0], cancelled).get();
    EXPECT_EQ(outcome.code, absl::StatusCode::kCancelled);
    EXPECT_TRUE(outcome.cancelled);
    // The item has the index of another: only the text of its request is the first's.
    Item late = workload.items()[1];
    late.index = 0;
    const Outcome expired = Send(*sender, late).get();
    EXPECT_EQ(expired.code, absl::StatusCode::kDeadlineExceeded);
    EXPECT_FALSE(expired.cancelled);
  }
  over.set_value();
}

TEST_F(HttpSenderTest, AnAddressWhereNothingAnswersIsOneClearError) {
  const Workload workload = MakeWorkload("m:1x4");
  HttpSenderOptions options;
  options.address = "127.0.0.1:1";
  const auto sender = HttpSender::Create(workload, {}, options, kClock);
  EXPECT_EQ(sender.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(sender.status().message()),
              HasSubstr("m:1x4:float32: 127.0.0.1:1: cannot connect: "));
}

}  // namespace
}  // namespace normd::load
