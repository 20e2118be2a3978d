// What tests of NormalizeStream share: a server with windows of some kilobytes, and requests.

#ifndef NORMD_TESTS_SERVER_RPC_STREAM_FIXTURE_H_
#define NORMD_TESTS_SERVER_RPC_STREAM_FIXTURE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/tensor/random.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/tensor.h"
#include "tests/support/threads.h"

namespace normd::testing {

inline constexpr std::int64_t kWindow = 64 << 10;
inline constexpr std::int64_t kPiece = 4 << 10;
inline constexpr std::int64_t kMaxChunk = kWindow / 4;

inline TestServerOptions SmallWindow() {
  TestServerOptions options;
  options.accept.stream = {.window_bytes = kWindow, .piece_bytes = kPiece};
  return options;
}

inline std::function<std::size_t()> ChunksOf(std::size_t bytes) {
  return [bytes] { return bytes; };
}

inline v1::NormalizeRequest Rows(int rows) { return MakeRequest("layer_norm_1024", {rows, 1024}); }

inline v1::NormalizeRequest Fused(int samples) {
  return MakeRequest("fused_linear_512", {samples, 512}, {"x", "y"});
}
// For a model with channels last, in float16.
inline v1::NormalizeRequest HalfRequest(const std::vector<std::int64_t>& shape,
                                        std::uint64_t seed) {
  v1::NormalizeRequest request = MakeRequest("group_norm_320_32_silu_last", shape, seed);
  v1::Tensor& input = *request.mutable_inputs(0);
  const std::size_t elements = input.data().size() / sizeof(float);
  norm::testing::Tensor half(norm::DType::kFloat16, static_cast<std::int64_t>(elements));
  half.Fill(norm::testing::Data::kNormal, seed);
  input.set_dtype(v1::FLOAT16);
  input.set_data(half.data(), half.bytes());
  return request;
}

inline constexpr char kWide[] = "wide";  // 16 -> 512 features, without a second input.
inline void AddWide(TestServer& server) {
  v1::ModelConfig config;
  config.mutable_linear_norm()->set_in_features(16);
  config.mutable_linear_norm()->set_out_features(512);
  config.mutable_linear_norm()->set_bias(false);
  const client::Tensor weight =
      client::RandomTensor(norm::DType::kFloat32, *Shape::Create({512, 16}), -1, 1, 3).value();
  AddModel(server, kWide, config, {{"linear.weight", weight}});
}

// Sends the header and the data in the largest chunks; whether the stream took all of it.
inline bool SendWhole(StreamClient& client, const v1::NormalizeRequest& request) {
  absl::string_view left = request.inputs(0).data();
  bool open = client.SendHeader(request);
  while (open && !left.empty()) {
    open = client.SendChunk(left.substr(0, static_cast<std::size_t>(kMaxChunk)));
    left.remove_prefix(static_cast<std::size_t>(kMaxChunk));
  }
  return open;
}

// Everything that a stream may hold is free again.
inline void ExpectNothingHeld(TestServer& server) {
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
  EXPECT_EQ(server.queue().waiting_requests(), 0);
  // gRPC lets go of the last response's bytes on a thread of its own, soon after the call's end.
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const std::string used = "normd_pool_bytes{pool=\"host\",state=\"used\"}";
  WaitUntil(
      [&] { return server.Metric(used) == 0 || std::chrono::steady_clock::now() >= give_up; });
  EXPECT_EQ(server.Metric(used), 0);
}

// Computed by lanes, or within Push: see BatchQueue::RunInlineOn.
class StreamPathTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  static TestServerOptions Options() {
    TestServerOptions options = SmallWindow();
    options.cpu_lanes = 2;
    options.queue.max_inline_bytes = GetParam();
    return options;
  }
};

}  // namespace normd::testing

#endif  // NORMD_TESTS_SERVER_RPC_STREAM_FIXTURE_H_
