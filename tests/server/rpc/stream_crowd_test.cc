// Many streams share a budget that is far too small for them: whatever their rows, their chunks and
// the pace of their clients, none fails, and at no time do all of them wait for each other. One
// thread, no connection, no timer: an event is drawn from those that are possible, and when none is
// before all have ended, the streams have locked each other out.

#include <grpc/grpc.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "normd/v1/norm_service.pb.h"
#include "server/metrics/metrics.h"
#include "server/rpc/stream_call.h"
#include "tests/support/fake_clock.h"
#include "tests/support/models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tensor.h"

namespace normd {
namespace {

using grpc::ByteBuffer;

// gRPC's side of one call.
class StreamTransport final : public grpc::ServerCallbackReaderWriter<ByteBuffer, ByteBuffer> {
 public:
  explicit StreamTransport(StreamCall& call) : call_(call) { BindReactor(&call); }

  void Finish(grpc::Status status) override { End(status); }
  void SendInitialMetadata() override {}
  void Read(ByteBuffer* message) override { reading = message; }
  void Write(const ByteBuffer* /*message*/, grpc::WriteOptions /*options*/) override {
    writing = true;
  }
  void WriteAndFinish(const ByteBuffer* /*message*/, grpc::WriteOptions /*options*/,
                      grpc::Status status) override {
    End(status);
  }

  ByteBuffer* reading = nullptr;
  bool writing = false;
  bool finished = false;
  grpc::Status end;

 private:
  grpc::internal::ServerReactor* reactor() override { return &call_; }
  void CallOnDone() override {}
  void End(const grpc::Status& status) {
    finished = true;
    end = status;
  }

  StreamCall& call_;
};

// One stream and its client.
struct Client {
  std::unique_ptr<grpc::CallbackServerContext> context;
  std::shared_ptr<StreamCall> call;
  std::unique_ptr<StreamTransport> transport;
  v1::NormalizeStreamRequest header;
  std::int64_t bytes = 0;
  std::int64_t sent = -1;  // -1: not even the header.
  bool half_closed = false;
  int pace = 1;  // It takes one of so many chances to act.
  bool gone = false;
};

class StreamCrowdTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kWindow = 4096;
  static constexpr std::int64_t kMaxChunk = kWindow / 4;

  StreamCrowdTest() {
    grpc_init();
    folder_.Write("rows/config.textproto", "instance_norm { channels: 3 affine: false }");
    std::filesystem::create_directory(folder_.File("rows/1"));
    EXPECT_TRUE(registry_.LoadAll().ok());
  }

  // Plays `streams` streams to their end.
  void Play(int streams, AdmissionLimits limits, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::int64_t end) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(end));
    };
    Admission admission(limits, metrics_);
    BatchQueue queue({.limits = {}, .max_queue_requests = 1 << 20, .max_inline_bytes = 0}, clock_);
    AcceptLimits accept_limits;
    accept_limits.stream = {.window_bytes = kWindow, .piece_bytes = 256};
    AcceptEnvironment accept{accept_limits, registry_, admission, queue, metrics_, clock_};
    CallOptions options;
    options.stream_idle_timeout = Duration(0);
    std::deque<Client> clients(static_cast<std::size_t>(streams));
    for (Client& client : clients) Begin(client, options, accept, below);

    std::vector<std::unique_ptr<Batch>> batches;
    std::int64_t most = 0;
    int left = streams;
    while (left > 0) {
      bool possible = false;
      if (BatchQueue::Poll poll = queue.TryTake(); poll.batch != nullptr) {
        batches.push_back(std::move(poll.batch));
      }
      if (!batches.empty()) {
        possible = true;
        if (below(3) == 0)
          Compute(batches,
                  static_cast<std::size_t>(below(static_cast<std::int64_t>(batches.size()))));
      }
      for (std::size_t i = 0; i < clients.size(); ++i) {
        Client& client = clients[i];
        if (client.gone) continue;
        possible = possible || client.transport->finished || client.transport->writing ||
                   client.transport->reading != nullptr;
        if (below(client.pace) > 0) continue;
        if (Act(client, below)) --left;
      }
      most = std::max(most, admission.inflight_bytes());
      ASSERT_LE(admission.inflight_bytes(),
                limits.max_inflight_bytes + 2 * kWindow + admission.chunk_bytes())
          << "more than the budget, one overdraft and what the streams may send unasked";
      ASSERT_TRUE(possible || left == 0)
          << left << " of " << streams
          << " streams wait for each other: " << admission.inflight_bytes() << " bytes inside, "
          << admission.waiting() << " wait";
    }
    queue.Close();
    EXPECT_EQ(admission.inflight_bytes(), 0);
    EXPECT_EQ(admission.inflight_requests(), 0);
    EXPECT_EQ(admission.chunk_bytes(), 0);
    EXPECT_EQ(admission.waiting(), 0);
    EXPECT_EQ(accept.active.count(), 0);
  }

  template <typename Below>
  void Begin(Client& client, const CallOptions& options, AcceptEnvironment& accept,
             const Below& below) {
    client.context = std::make_unique<grpc::CallbackServerContext>();
    client.call = StreamCall::Create(options, accept, *client.context);
    client.call->Start();
    client.transport = std::make_unique<StreamTransport>(*client.call);
    client.pace = static_cast<int>(1 + below(2) * below(20));
    v1::NormalizeRequest& header = *client.header.mutable_header();
    header.set_model("rows");
    v1::Tensor& input = *header.add_inputs();
    input.set_dtype(v1::FLOAT32);
    // Rows from 4 bytes to the largest that the window takes.
    constexpr std::int64_t kLargestRow = (kWindow - kMaxChunk) / 4;
    const std::int64_t row = below(2) == 0 ? kLargestRow - below(4) : 1 + below(kLargestRow);
    for (const std::int64_t dim : {below(4), std::int64_t{3}, row}) input.add_shape(dim);
    client.bytes = input.shape(0) * 3 * row * 4;
  }

  // What the client and gRPC can do for a call. Whether it has ended with this.
  template <typename Below>
  bool Act(Client& client, const Below& below) {
    StreamTransport& transport = *client.transport;
    if (transport.finished) {
      EXPECT_TRUE(transport.end.ok()) << transport.end.error_message();
      if (std::exchange(transport.reading, nullptr) != nullptr) client.call->OnReadDone(false);
      const std::weak_ptr<StreamCall> weak = client.call;
      client.call.reset();
      if (const std::shared_ptr<StreamCall> call = weak.lock()) call->OnDone();
      EXPECT_TRUE(weak.expired());
      return client.gone = true;
    }
    if (transport.writing && below(2) == 0) {
      transport.writing = false;
      client.call->OnWriteDone(true);
    } else if (transport.reading != nullptr) {
      Send(client, below);
    }
    return false;
  }

  template <typename Below>
  void Send(Client& client, const Below& below) {
    ByteBuffer* message = std::exchange(client.transport->reading, nullptr);
    if (client.sent == client.bytes) {
      client.half_closed = true;
      return client.call->OnReadDone(false);
    }
    v1::NormalizeStreamRequest part = client.header;
    if (client.sent >= 0) {
      const std::int64_t most = std::min(kMaxChunk, client.bytes - client.sent);
      const std::int64_t size = below(3) == 0 ? most : below(most + 1);
      part.set_chunk(std::string(static_cast<std::size_t>(size), 'x'));
      client.sent += size;
    } else {
      client.sent = 0;
    }
    const grpc::Slice slice(part.SerializeAsString());
    *message = ByteBuffer(&slice, 1);
    client.call->OnReadDone(true);
  }

  static void Compute(std::vector<std::unique_ptr<Batch>>& batches, std::size_t which) {
    const std::unique_ptr<Batch> batch = std::move(batches[which]);
    batches.erase(batches.begin() + static_cast<std::ptrdiff_t>(which));
    for (std::unique_ptr<Request>& request : batch->requests) {
      const auto size = static_cast<std::size_t>(request->geometry.OutputBytes());
      auto* memory = new std::byte[size];
      Buffer output(memory, size, [memory] { delete[] memory; });
      Complete(std::move(request), std::move(output), {batch->id, 1, batch->bytes, ""});
    }
  }

  FakeClock clock_;
  Metrics metrics_;
  NoBackend backend_;
  const testing::TempFolder folder_;
  ModelRegistry registry_{{.roots = {folder_.path()}, .on_change = {}}, backend_, metrics_, clock_};
};

TEST_F(StreamCrowdTest, NoBudgetIsTooSmallForAnyNumberOfStreams) {
  const std::uint64_t seed = norm::testing::TestSeed();
  int round = 0;
  for (const int streams : {1, 2, 3, 3, 3, 8, 8, 30}) {
    for (const std::int64_t budget :
         {std::int64_t{1}, kWindow, 2 * kWindow, 5 * kWindow, 100 * kWindow}) {
      for (const std::int64_t overdraft : {std::int64_t{0}, kWindow, 100 * kWindow}) {
        SCOPED_TRACE(absl::StrCat(streams, " streams, budget ", budget, ", overdraft ", overdraft));
        Play(streams,
             {.max_inflight_bytes = budget,
              .overdraft_bytes = overdraft,
              .max_chunk_bytes = std::int64_t{1} << 30},
             seed + static_cast<std::uint64_t>(++round));
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace normd
