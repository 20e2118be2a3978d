// Calls during which allocations fail, from each one on: every call ends once, whatever it meets,
// and leaves nothing behind. gRPC and the sockets are the test's own, so that all that fails is
// the server's.

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/descriptor.h"
#include "server/accept/client_status.h"
#include "server/exec/backends.h"
#include "server/log/server_log.h"
#include "server/rest/infer_call.h"
#include "server/rpc/norm_messages.h"
#include "server/rpc/normalize_call.h"
#include "server/rpc/stream_call.h"
#include "spdlog/spdlog.h"
#include "tests/server/rest/rest_requests.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/failing_allocations.h"
#include "tests/support/fake_clock.h"

namespace normd::testing {
namespace {

using grpc::ByteBuffer;

constexpr char kModel[] = "instance_norm_64";

ByteBuffer MessageOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return ByteBuffer(&slice, 1);
}

CallOptions WithoutAlarms() {
  CallOptions options;
  options.stream_idle_timeout = options.response_timeout = Duration(0);
  return options;
}

class UnaryTransport final : public grpc::ServerCallbackUnary {
 public:
  explicit UnaryTransport(grpc::ServerUnaryReactor& reactor) : reactor_(reactor) {
    BindReactor(&reactor);
  }
  void Finish(grpc::Status status) override {
    ++finishes;
    code = status.error_code();
  }
  void SendInitialMetadata() override {}

  int finishes = 0;
  grpc::StatusCode code = grpc::StatusCode::UNKNOWN;

 private:
  grpc::internal::ServerReactor* reactor() override { return &reactor_; }
  void CallOnDone() override {}

  grpc::ServerUnaryReactor& reactor_;
};

class StreamTransport final : public grpc::ServerCallbackReaderWriter<ByteBuffer, ByteBuffer> {
 public:
  explicit StreamTransport(DrivenStream& stream) : stream_(stream) { BindReactor(&stream); }

  // Ends the operation in progress; messages come before the half-close. False: there is none.
  bool EndOperation(std::vector<ByteBuffer>& messages) {
    if (ByteBuffer* const to = std::exchange(reading_, nullptr)) {
      const bool more = next_ < messages.size();
      if (more) to->Swap(&messages[next_++]);
      stream_.OnReadDone(more);
    } else if (std::exchange(writing_, false)) {
      stream_.OnWriteDone(true);
    } else {
      return false;
    }
    return true;
  }

  int finishes = 0;
  grpc::StatusCode code = grpc::StatusCode::UNKNOWN;

 private:
  void Finish(grpc::Status status) override {
    ++finishes;
    code = status.error_code();
  }
  void SendInitialMetadata() override {}
  void Read(ByteBuffer* message) override { reading_ = message; }
  void Write(const ByteBuffer* /*message*/, grpc::WriteOptions /*options*/) override {
    writing_ = true;
  }
  void WriteAndFinish(const ByteBuffer* /*message*/, grpc::WriteOptions /*options*/,
                      grpc::Status status) override {
    Finish(std::move(status));
  }
  grpc::internal::ServerReactor* reactor() override { return &stream_; }
  void CallOnDone() override {}

  DrivenStream& stream_;
  ByteBuffer* reading_ = nullptr;
  bool writing_ = false;
  std::size_t next_ = 0;
};

class NoMemoryTest : public ::testing::Test {
 protected:
  NoMemoryTest() {
    EXPECT_TRUE(registry_.LoadAll().ok());
    std::vector<BatchRunner*> runners;
    for (const std::unique_ptr<Lane>& lane : lanes_) runners.push_back(lane.get());
    queue_.RunInlineOn(std::move(runners));
    rest_.later = [](absl::AnyInvocable<void() &&> work) {
      const auto place = std::make_unique<int>();  // As a queue's.
      std::move(work)();
    };
  }
  ~NoMemoryTest() override {
    queue_.RunInlineOn({});
    queue_.Close();
  }

  // Calls `attempt` with more and more allocations that succeed, until it does.
  template <typename Attempt>
  void ForEachFailure(Attempt attempt) {
    for (int left = 0; left < 20000; ++left) {
      SCOPED_TRACE(absl::StrCat(left, " allocations succeed"));
      const bool succeeded = attempt(left);
      ASSERT_EQ(admission_.inflight_requests(), 0);
      ASSERT_EQ(admission_.inflight_bytes(), 0);
      ASSERT_EQ(admission_.chunk_bytes(), 0);
      ASSERT_EQ(accept_.active.count(), 0);
      ASSERT_EQ(queue_.waiting_requests(), 0);
      if (HasFailure()) return;
      if (!succeeded) continue;
      EXPECT_GT(left, 5) << "the call allocates";
      return;
    }
    FAIL() << "no call succeeds";
  }

  bool CallOverHttp(const std::string& body, const std::string& json_bytes, int left) {
    RestHead head;
    head.json_bytes = json_bytes;
    Route route;
    route.method = RestMethod::kInfer;
    route.model = kModel;
    BufferPool pool(1 << 20);
    RequestBody received(body.size(), pool, 0);
    received.Append({reinterpret_cast<const std::byte*>(body.data()), body.size()});
    int replies = 0;
    bool threw = false;
    std::unique_ptr<RestCall> call;
    {
      const FailingAllocations failing(left);
      try {
        call = MakeRestCall(rest_, {head, route, caller_, certificate_}, [&] { ++replies; });
        call->Run(std::move(received));
      } catch (const std::bad_alloc&) {
        threw = true;  // Then its connection ends it.
      }
    }
    EXPECT_EQ(replies, threw ? 0 : 1);
    if (call == nullptr) return false;
    const FailingAllocations failing(0);
    const bool succeeded = !threw && call->reply().status == 200;
    call->Record();
    call.reset();
    return succeeded;
  }

  // As a lane's thread. False: nothing waits.
  bool Compute() {
    std::unique_ptr<Batch> batch = queue_.TryTake().batch;
    return batch != nullptr && lanes_.front()->Execute(std::move(batch)).ok();
  }

  FakeClock clock_;
  Metrics metrics_;
  const std::unique_ptr<Backend> backend_ = CreateCpuBackend({}, metrics_, clock_);
  ModelRegistry registry_{
      {.roots = {NORMD_DEMO_MODELS}, .on_change = {}}, *backend_, metrics_, clock_};
  Admission admission_{{}, metrics_};
  BatchQueue queue_{{.limits = {}, .max_inline_bytes = 1 << 20}, clock_};
  const std::vector<std::unique_ptr<Lane>> lanes_ = backend_->MakeInlineLanes();
  AcceptEnvironment accept_{{}, registry_, admission_, queue_, metrics_, clock_};
  CallEnvironment environment_{WithoutAlarms(), accept_};
  RestEnvironment rest_{accept_, environment_.control,
                        InferMethods(
                            accept_, [] { return true; }, "test")};
  const std::shared_ptr<Caller> caller_;
  const CertificateNames certificate_;
};

TEST_F(NoMemoryTest, AUnaryCallEndsOnce) {
  const NormalizeCodec codec;
  const std::string wire = MakeRequest(kModel, {1, 64, 16}).SerializeAsString();
  ForEachFailure([&](int left) {
    grpc::CallbackServerContext context;
    const ByteBuffer request = MessageOf(wire);
    ByteBuffer response;
    grpc::ServerUnaryReactor* reactor = nullptr;
    {
      const FailingAllocations failing(left);
      reactor = NormalizeCall::Begin(environment_, context, Method::kNormalize,
                                     {request, response, codec});
    }
    const UnaryTransport transport(*reactor);
    EXPECT_EQ(transport.finishes, 1);
    const FailingAllocations failing(0);
    reactor->OnDone();
    return transport.code == grpc::StatusCode::OK;
  });
}

TEST_F(NoMemoryTest, AStreamEndsOnce) {
  const v1::NormalizeRequest request = MakeRequest(kModel, {3, 64, 1000});
  v1::NormalizeStreamRequest header;
  *header.mutable_header() = request;
  header.mutable_header()->mutable_inputs(0)->clear_data();
  const std::string& data = request.inputs(0).data();
  std::vector<std::string> wires = {header.SerializeAsString()};
  for (std::size_t at = 0; at < data.size(); at += 100'000) {
    v1::NormalizeStreamRequest part;
    part.set_chunk(data.substr(at, 100'000));
    wires.push_back(part.SerializeAsString());
  }
  ForEachFailure([&](int left) {
    grpc::CallbackServerContext context;
    std::vector<ByteBuffer> messages;
    for (const std::string& wire : wires) messages.push_back(MessageOf(wire));
    const FailingAllocations failing(left);
    DrivenStream* const stream = BeginStream<StreamCall>(environment_.options, accept_, context);
    if (stream == nullptr) return false;  // gRPC ends the call.
    StreamTransport transport(*stream);
    while (transport.finishes == 0 && (transport.EndOperation(messages) || Compute())) {
    }
    if (transport.finishes != 1) std::abort();  // It stands still, and would never be gone.
    stream->OnDone();
    return transport.code == grpc::StatusCode::OK;
  });
}

TEST_F(NoMemoryTest, ACallOverHttpEndsOnce) {
  const std::string binary = ToBinary(ToInfer(MakeRequest(kModel, {1, 64, 16}))).body;
  const std::string json_bytes = absl::StrCat(binary.rfind('}', binary.size() - 64 * 16 * 4) + 1);
  ForEachFailure([&](int left) { return CallOverHttp(binary, json_bytes, left); });
  // Long texts have threads of their own.
  const std::string text = ToText(ToInfer(MakeRequest(kModel, {1, 64, 300})));
  ForEachFailure([&](int left) { return CallOverHttp(text, "", left); });
}

TEST(LogNoMemoryTest, CountsTheLinesThatAreLost) {
  const Descriptor file(open("/dev/null", O_WRONLY | O_CLOEXEC));
  ServerLog log(file.get(), "info", LogFormat::kText);
  const std::string text(1000, 'x');
  {
    const FailingAllocations failing(0);
    spdlog::info("{}", text);
    log.WriteRequestLine(text);
  }
  EXPECT_EQ(log.lost_lines(), 2);
}

class CountingWaiter final : public Admission::Waiter {
 public:
  void OnRoom(bool overdraft) override { ++(overdraft ? overdrafts : calls); }
  int calls = 0;
  int overdrafts = 0;
};

TEST(AdmissionNoMemoryTest, WhoeverWaitsIsCalled) {
  Metrics metrics;
  Admission admission({.max_inflight_bytes = 100, .overdraft_bytes = 0}, metrics);
  std::vector<absl::StatusOr<Admission::Lease>> leases;
  for (int i = 0; i < 4; ++i) leases.push_back(admission.AdmitStream(1, metrics.ForNoModel()));
  leases[0]->Add(100);
  const auto waiter = std::make_shared<CountingWaiter>();
  for (int i = 1; i < 4; ++i) admission.AwaitRoom(*leases[i], 10, waiter);
  EXPECT_EQ(waiter->overdrafts, 1);
  EXPECT_EQ(waiter->calls, 0);
  {
    const FailingAllocations failing(0);
    leases[0]->Return(100);
  }
  EXPECT_EQ(waiter->calls, 2);
  EXPECT_EQ(admission.waiting(), 0);
}

}  // namespace
}  // namespace normd::testing
