#include "client/client.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/health.h"
#include "tests/support/fake_norm_service.h"
#include "tests/support/temp_repository.h"

namespace normd::client {
namespace {

using test::RandomFloats;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

NormalizeRequest RequestOf(const Tensor& tensor) {
  NormalizeRequest request;
  request.model = "norm";
  request.inputs = {tensor.named()};
  return request;
}

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() {
    server_.AddModel("norm", test::ConfigOf("instance_norm { channels: 4 affine: true }"),
                     test::AffineParameters(4));
  }

  test::FakeNormService server_;
  const std::unique_ptr<Client> client_ = Client::Create(server_.target()).value();
};

TEST_F(ClientTest, NormalizesATensor) {
  const Tensor x = RandomFloats({2, 4, 100});
  const auto response = client_->Normalize(RequestOf(x));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->model(), "norm");
  EXPECT_EQ(response->version(), 1);
  EXPECT_EQ(response->batch().lane(), "fake:0");
  EXPECT_EQ(response->outputs()[0].shape(), x.shape());
  // By hand: the first row's mean is beta, whatever gamma is.
  const Tensor y = response->outputs()[0].ToTensor().value();
  const auto* row = reinterpret_cast<const float*>(y.bytes().data());
  double sum = 0;
  for (int i = 0; i < 100; ++i) sum += static_cast<double>(row[i]);
  const Tensor bias = test::AffineParameters(4).at("bias");
  EXPECT_NEAR(sum / 100, static_cast<double>(*reinterpret_cast<const float*>(bias.bytes().data())),
              1e-5);
}

TEST_F(ClientTest, NormalizesATensorOfManySlices) {
  const Tensor x = RandomFloats({1, 4, 1 << 18});
  const auto response = client_->Normalize(RequestOf(x));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->size_bytes(), std::size_t{4} << 20);
  EXPECT_GT(response->outputs()[0].pieces().size(), 1u);
}

TEST_F(ClientTest, NormalizesAnEmptyTensor) {
  const auto response = client_->Normalize(RequestOf(RandomFloats({0, 4, 3})));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->size_bytes(), 0u);
  EXPECT_EQ(response->outputs()[0].shape().ToString(), "[0, 4, 3]");
}

TEST_F(ClientTest, PassesOnTheServersErrors) {
  NormalizeRequest request = RequestOf(RandomFloats({1, 4, 2}));
  request.model = "other";
  EXPECT_EQ(client_->Normalize(request).status(), absl::NotFoundError("model: no \"other\""));
  request = RequestOf(RandomFloats({1, 3, 2}));
  EXPECT_EQ(client_->Normalize(request).status().code(), absl::StatusCode::kInvalidArgument);
  server_.FailFrom(0, absl::ResourceExhaustedError("queue: full"));
  request = RequestOf(RandomFloats({1, 4, 2}));
  EXPECT_EQ(client_->Normalize(request).status(), absl::ResourceExhaustedError("queue: full"));
}

TEST_F(ClientTest, SendsBytesThatDoNotFitTheShapeAsTheyAre) {
  const Tensor x = RandomFloats({1, 4, 2});
  NormalizeRequest request = RequestOf(x);
  request.inputs[0].tensor.bytes = request.inputs[0].tensor.bytes.first(31);
  EXPECT_THAT(std::string(client_->Normalize(request).status().message()),
              HasSubstr("31 bytes, wanted 32"));
}

TEST_F(ClientTest, TimesOutWhileTheServerIsBusy) {
  server_.Hold();
  const Tensor x = RandomFloats({1, 4, 2});
  NormalizeRequest request = RequestOf(x);
  request.timeout = std::chrono::milliseconds(20);
  const absl::Status status = client_->Normalize(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr(server_.target()));
  server_.Release();
}

TEST_F(ClientTest, CancelEndsACall) {
  server_.Hold();
  const Tensor x = RandomFloats({1, 4, 2});
  std::promise<absl::Status> ended;
  const auto call = client_->NormalizeAsync(
      RequestOf(x), [&](auto response) { ended.set_value(response.status()); });
  ASSERT_TRUE(call.ok());
  server_.WaitForCalls(1);
  (*call)->Cancel();
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kCancelled);
  server_.Release();
}

TEST_F(ClientTest, LetsGoOfTheInputAfterTheCall) {
  std::promise<void> released;
  Tensor x = RandomFloats({1, 4, 1 << 16});
  NormalizeRequest request = RequestOf(x);
  // The deleter holds the memory, and tells when it is called.
  request.inputs[0].owner = std::shared_ptr<const void>(
      x.bytes().data(), [owner = x.owner(), &released](const void*) { released.set_value(); });
  x = Tensor();
  ASSERT_TRUE(client_->Normalize(request).ok());
  request.inputs[0].owner.reset();
  released.get_future().wait();
}

TEST_F(ClientTest, ManyCallsFromCallbacksEachGetTheirResponse) {
  constexpr int kChains = 16;
  constexpr int kCalls = 50;
  struct Chain {
    Client* client = nullptr;
    Tensor input;
    Tensor expected;
    int left = kCalls;
    std::atomic<int>* running = nullptr;
    std::promise<void>* all_done = nullptr;
    int wrong = 0;

    void Next() {
      if (left-- == 0) {
        if (running->fetch_sub(1) == 1) all_done->set_value();
        return;
      }
      const auto call = client->NormalizeAsync(RequestOf(input), [this](auto response) {
        if (!response.ok() || response->outputs()[0].ToTensor()->bytes() != expected.bytes())
          ++wrong;
        Next();
      });
      ASSERT_TRUE(call.ok());
    }
  };
  std::atomic<int> running{kChains};
  std::promise<void> all_done;
  std::vector<Chain> chains(kChains);
  for (int i = 0; i < kChains; ++i) {
    Chain& chain = chains[static_cast<std::size_t>(i)];
    chain.client = client_.get();
    chain.input = RandomFloats({1 + i % 3, 4, 5 + i}, static_cast<std::uint64_t>(i));
    chain.expected = client_->Normalize(RequestOf(chain.input))->outputs()[0].ToTensor().value();
    chain.running = &running;
    chain.all_done = &all_done;
  }
  for (Chain& chain : chains) chain.Next();
  all_done.get_future().wait();
  for (const Chain& chain : chains) EXPECT_EQ(chain.wrong, 0);
}

TEST_F(ClientTest, ACallOutlivesItsClient) {
  server_.Hold();
  const Tensor x = RandomFloats({1, 4, 2});
  std::promise<absl::Status> ended;
  {
    const auto client = Client::Create(server_.target(), {.own_connection = true}).value();
    const auto call = client->NormalizeAsync(
        RequestOf(x), [&](auto response) { ended.set_value(response.status()); });
    ASSERT_TRUE(call.ok());
    server_.WaitForCalls(1);
  }
  server_.Release();
  const absl::Status status = ended.get_future().get();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(ClientTest, TellsOfAServerThatCannotBeReached) {
  server_.Stop();
  const auto client = Client::Create(server_.target(), {.own_connection = true}).value();
  const absl::Status status = client->Normalize(RequestOf(RandomFloats({1, 4, 2}))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot reach " + server_.target()));
  EXPECT_EQ(client->GetServerInfo().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ClientTest, ConnectTellsWhetherTheServerIsThere) {
  EXPECT_TRUE(client_->Connect());
  EXPECT_TRUE(client_->Connect());
  server_.Stop();
  const auto client = Client::Create(server_.target(), {.own_connection = true}).value();
  EXPECT_FALSE(client->Connect());
  EXPECT_FALSE(client->Connect(std::chrono::milliseconds(1)));
}

// A listener that closes the first connection; gRPC's server then joins it on its port.
TEST(ClientConnectTest, SurvivesAnAttemptThatFails) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(listener, 0);
  const int on = 1;
  ASSERT_EQ(setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener, any, size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, any, &size), 0);
  const std::string target = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  const auto client = Client::Create(target, {.own_connection = true}).value();
  bool connected = false;
  std::thread connecting([&] { connected = client->Connect(std::chrono::seconds(20)); });

  const int first = accept(listener, nullptr, nullptr);
  EXPECT_GE(first, 0);
  v1::NormService::Service service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(target, grpc::InsecureServerCredentials());
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  close(listener);
  close(first);
  connecting.join();
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(connected);
}

TEST_F(ClientTest, AServerThatDiesEndsTheCall) {
  server_.Hold();
  std::promise<absl::Status> ended;
  const auto call = client_->NormalizeAsync(RequestOf(RandomFloats({1, 4, 2})), [&](auto response) {
    ended.set_value(response.status());
  });
  ASSERT_TRUE(call.ok());
  server_.WaitForCalls(1);
  server_.Stop();
  const absl::Status status = ended.get_future().get();
  // What the dying server's handler still answers is a matter of luck; that the call ends is not.
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kUnavailable ||
              status.code() == absl::StatusCode::kCancelled)
      << status;
}

TEST_F(ClientTest, AdministersModels) {
  const auto models = client_->ListModels();
  ASSERT_TRUE(models.ok()) << models.status();
  ASSERT_EQ(models->models_size(), 1);
  EXPECT_EQ(models->models(0).name(), "norm");
  EXPECT_EQ(client_->GetModel("norm")->config().instance_norm().channels(), 4);
  EXPECT_EQ(client_->LoadModel("norm")->version(), 1);
  EXPECT_THAT(client_->UnloadModel("norm")->versions(), ElementsAre(1));
  EXPECT_EQ(client_->GetModel("norm").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client_->GetServerInfo()->version(), "fake");
}

// The system's resolver takes all of these for port 1.
TEST(ClientCreateTest, RefusesPortsThatWouldBeTakenForAnother) {
  for (const std::string scheme : {"", "dns:", "dns:///", "ipv4:"}) {
    for (const std::string port :
         {"65537", "131073", "4294967297", "18446744073709551617", "+65537", " 65537", "-65535"}) {
      const auto client = Client::Create(scheme + "127.0.0.1:" + port, ClientOptions());
      ASSERT_FALSE(client.ok()) << scheme << port;
      EXPECT_EQ(client.status().message(),
                "server: \"" + scheme + "127.0.0.1:" + port +
                    "\", wanted an address with a port up to 65535, such as 127.0.0.1:8001");
    }
  }
  EXPECT_FALSE(Client::Create("unix-box:65537").ok());  // A host of that name.
  for (const std::string target : {"127.0.0.1:65535", "[::1]:65535", "unix:/tmp/a:65537"}) {
    EXPECT_TRUE(Client::Create(target, ClientOptions()).ok()) << target;
  }
}

TEST(ClientCreateTest, RefusesTargetsThatNameNoServer) {
  for (const char* target : {"", "localhost", "127.0.0.1:"}) {
    EXPECT_EQ(Client::Create(target).status().code(), absl::StatusCode::kInvalidArgument) << target;
  }
}

// Then the process' last channel ends on one of gRPC's own threads. Many times, as what goes wrong
// shows after the test that did it.
TEST(ClientEndTest, TheOnlyClientMayEndWithinItsLastCall) {
  const Tensor x = RandomFloats({1, 8, 3});
  for (int i = 0; i < 10; ++i) {
    auto client = Client::Create("127.0.0.1:1").value();
    std::promise<absl::Status> ended;
    const auto done = [&](const absl::StatusOr<NormalizeResponse>& response) {
      const absl::Status status = response.status();
      client.reset();
      ended.set_value(status);
    };
    ASSERT_TRUE(client->NormalizeAsync(RequestOf(x), done).ok());
    EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kUnavailable);
  }
}

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
