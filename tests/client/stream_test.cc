#include "client/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/tensor/stream_order.h"
#include "tests/support/fake_norm_service.h"
#include "tests/support/temp_repository.h"

namespace normd::client {
namespace {

using test::RandomFloats;
using ::testing::HasSubstr;

class StreamTest : public ::testing::Test {
 protected:
  StreamTest() : client_(Client::Create(server_.target()).value()) {
    server_.AddModel("norm", test::ConfigOf("instance_norm { channels: 8 affine: true }"),
                     test::AffineParameters(8));
    request_.model = "norm";
    request_.inputs = {x_.spec()};
  }

  absl::Status ReadInput(absl::Span<std::byte> out) {
    std::memcpy(out.data(), stream_.bytes().data() + read_, out.size());
    read_ += out.size();
    return absl::OkStatus();
  }
  absl::Status WriteOutput(absl::Span<const std::byte> bytes) {
    output_.insert(output_.end(), bytes.begin(), bytes.end());
    return absl::OkStatus();
  }
  absl::StatusOr<StreamResult> Run() {
    return client_->NormalizeStream(
        request_, [this](absl::Span<std::byte> out) { return ReadInput(out); },
        [this](absl::Span<const std::byte> bytes) { return WriteOutput(bytes); });
  }

  // The bytes that the call without a stream gives.
  std::vector<std::byte> UnaryOutput(std::vector<NamedTensor> inputs) {
    NormalizeRequest unary;
    unary.model = request_.model;
    unary.inputs = std::move(inputs);
    const absl::StatusOr<NormalizeResponse> response = client_->Normalize(unary);
    EXPECT_TRUE(response.ok()) << response.status();
    if (!response.ok()) return {};
    std::vector<std::byte> bytes(response->outputs()[0].size_bytes());
    response->outputs()[0].CopyTo(absl::MakeSpan(bytes));
    return bytes;
  }

  test::FakeNormService server_;
  const std::unique_ptr<Client> client_;
  const Tensor x_ = RandomFloats({5, 8, 33, 31}, 1);
  Tensor stream_ = x_;  // What is read.
  StreamRequest request_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::size_t read_ = 0;
  std::vector<std::byte> output_;
};

TEST_F(StreamTest, TellsItsProgressUpToTheEnd) {
  std::vector<StreamProgress> seen;
  request_.on_progress = [&](const StreamProgress& progress) { seen.push_back(progress); };
  ASSERT_TRUE(Run().ok());
  const auto bytes = static_cast<std::int64_t>(x_.view().bytes.size());
  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end(), [](const auto& a, const auto& b) {
    return a.received_bytes < b.received_bytes;
  }));
  EXPECT_EQ(seen.back().received_bytes, bytes);
  EXPECT_EQ(seen.back().sent_bytes, bytes);
  EXPECT_EQ(seen.back().total_bytes, bytes);
}

TEST_F(StreamTest, AReadersErrorEndsTheCall) {
  const absl::StatusOr<StreamResult> result = client_->NormalizeStream(
      request_,
      [&](absl::Span<std::byte> out) {
        return read_ > 10000 ? absl::DataLossError("the disk broke") : ReadInput(out);
      },
      [this](absl::Span<const std::byte> bytes) { return WriteOutput(bytes); });
  EXPECT_EQ(result.status(), absl::DataLossError("the disk broke"));
}

TEST_F(StreamTest, AWritersErrorEndsTheCall) {
  const absl::StatusOr<StreamResult> result = client_->NormalizeStream(
      request_, [this](absl::Span<std::byte> out) { return ReadInput(out); },
      [](absl::Span<const std::byte>) { return absl::ResourceExhaustedError("the disk is full"); });
  EXPECT_EQ(result.status(), absl::ResourceExhaustedError("the disk is full"));
}

TEST_F(StreamTest, EndsAtItsTimeout) {
  request_.timeout = std::chrono::milliseconds(1);
  const absl::StatusOr<StreamResult> result = client_->NormalizeStream(
      request_,
      [this](absl::Span<std::byte> out) {
        // Until the call is over, which the next write then finds.
        while (std::chrono::steady_clock::now() < begin_ + std::chrono::milliseconds(5)) {
        }
        return ReadInput(out);
      },
      [this](absl::Span<const std::byte> bytes) { return WriteOutput(bytes); });
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
}

// A fused layer, whose second input has another size and whose response has that size.
class FusedStreamTest : public StreamTest {
 protected:
  FusedStreamTest() {
    server_.AddModel("fused",
                     test::ConfigOf("linear_norm { in_features: 6 out_features: 10 bias: false "
                                    "epilogue { add: true } }"),
                     {{"linear.weight", RandomFloats({10, 6}, 2)}});
    request_.model = "fused";
    request_.inputs = {x_.spec("x"), y_.spec("y")};
    stream_ = JoinStream({x_, y_}, 7).value();
  }

  const Tensor x_ = RandomFloats({7, 6}, 3);
  const Tensor y_ = RandomFloats({7, 10}, 4);
};

TEST_F(FusedStreamTest, GivesTheBytesOfTheUnaryCallAndTheShapeBeforeThem) {
  const std::vector<std::byte> expected = UnaryOutput({x_.named("x"), y_.named("y")});
  int accepted = 0;
  request_.on_accepted = [&](const StreamResult& result) {
    ++accepted;
    EXPECT_EQ(read_ + output_.size(), 0U);
    EXPECT_EQ(result.outputs[0].shape, y_.shape());
    return absl::OkStatus();
  };
  request_.chunk_bytes = 100;
  const absl::StatusOr<StreamResult> result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(accepted, 1);
  EXPECT_TRUE(output_ == expected);
}

TEST_F(FusedStreamTest, AnErrorOnceItIsAcceptedEndsTheCall) {
  request_.on_accepted = [](const StreamResult&) { return absl::AbortedError("no room"); };
  EXPECT_EQ(Run().status(), absl::AbortedError("no room"));
  EXPECT_EQ(read_, 0U);
}

// The call without a thread, waited for.
class StreamCallTest : public StreamTest {
 protected:
  // Starts the call and runs `meanwhile` with it.
  absl::StatusOr<StreamResult> RunAsync(const std::function<void(PendingCall&)>& meanwhile =
                                            [](PendingCall&) {}) {
    std::promise<absl::StatusOr<StreamResult>> promise;
    std::future<absl::StatusOr<StreamResult>> ended = promise.get_future();
    const absl::Span<const std::byte> bytes = x_.bytes().first(input_bytes_);
    const auto call = client_->NormalizeStreamAsync(
        std::make_shared<StreamedTensor>(StreamedTensor{request_, bytes, x_.owner()}),
        [this](absl::Span<const std::byte> piece) { (void)WriteOutput(piece); },
        [&](absl::StatusOr<StreamResult> result) { promise.set_value(std::move(result)); });
    meanwhile(*call);
    return ended.get();
  }

  std::size_t input_bytes_ = x_.bytes().size();
};

enum class Kind { kBlocking, kWithoutAThread };

// What both kinds of call promise.
class EitherStreamTest : public StreamCallTest, public ::testing::WithParamInterface<Kind> {
 protected:
  absl::StatusOr<StreamResult> RunEither() {
    return GetParam() == Kind::kBlocking ? Run() : RunAsync();
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, EitherStreamTest,
                         ::testing::Values(Kind::kBlocking, Kind::kWithoutAThread));

TEST_P(EitherStreamTest, GivesTheBytesOfTheUnaryCallForEveryChunkSize) {
  const std::vector<std::byte> expected = UnaryOutput({x_.named()});
  for (const std::int64_t chunk_bytes : {1000, 4096, 1 << 20}) {
    request_.chunk_bytes = chunk_bytes;
    read_ = 0;
    output_.clear();
    const absl::StatusOr<StreamResult> result = RunEither();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(output_ == expected) << chunk_bytes;
    EXPECT_EQ(result->model, "norm");
    EXPECT_EQ(result->version, 1);
    EXPECT_EQ(result->trailer.pieces(), 1);
  }
}

TEST_P(EitherStreamTest, TheServersErrorComesAsItIs) {
  server_.FailFrom(0, absl::ResourceExhaustedError("bytes in flight: all taken"));
  EXPECT_EQ(RunEither().status(), absl::ResourceExhaustedError("bytes in flight: all taken"));
  EXPECT_EQ(read_, 0U) << "nothing is read for a stream that is refused";
  request_.model = "other";
  server_.FailFrom(100, absl::OkStatus());
  EXPECT_EQ(RunEither().status().code(), absl::StatusCode::kNotFound);
}

TEST_P(EitherStreamTest, AServerThatIsNotThereIsUnavailable) {
  server_.Stop();
  const absl::Status status = RunEither().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(server_.target()));
}

TEST_P(EitherStreamTest, AnEmptyTensorReadsNothing) {
  request_.inputs[0].shape = Shape::Create({0, 8, 3}).value();
  input_bytes_ = 0;
  const absl::StatusOr<StreamResult> result = RunEither();
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(read_, 0U);
  EXPECT_TRUE(output_.empty());
}

TEST_F(StreamCallTest, BytesThatDoNotFitTheShapeAreTheServersToRefuse) {
  input_bytes_ -= 4;
  EXPECT_EQ(RunAsync().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StreamCallTest, EndsAtItsTimeoutAndWhenItIsCancelled) {
  server_.HoldFrom(0);
  request_.timeout = std::chrono::milliseconds(1);
  EXPECT_EQ(RunAsync().status().code(), absl::StatusCode::kDeadlineExceeded);
  request_.timeout = kNoTimeout;
  EXPECT_EQ(RunAsync([](PendingCall& call) { call.Cancel(); }).status().code(),
            absl::StatusCode::kCancelled);
  server_.Release();
}

TEST_F(StreamCallTest, ACallOutlivesItsClient) {
  std::promise<absl::StatusOr<StreamResult>> promise;
  auto own = Client::Create(server_.target()).value();
  own->NormalizeStreamAsync(
      std::make_shared<StreamedTensor>(StreamedTensor{request_, x_.bytes(), x_.owner()}), nullptr,
      [&](absl::StatusOr<StreamResult> result) { promise.set_value(std::move(result)); });
  own.reset();
  EXPECT_TRUE(promise.get_future().get().ok());
}

}  // namespace
}  // namespace normd::client
