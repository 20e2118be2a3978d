// Compressed messages: every method takes them, and none is inflated beyond what a message may be.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/accept/inflate.h"
#include "tests/server/rpc/access_calls.h"
#include "tests/server/rpc/infer_requests.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"
#include "wire/grpc_slices.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using Code = grpc::StatusCode;

constexpr char kInstanceNorm[] = "instance_norm_64";
constexpr char kModelInfer[] = "/inference.GRPCInferenceService/ModelInfer";
constexpr grpc_compression_algorithm kAlgorithms[] = {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP};

std::function<void(grpc::ClientContext&)> By(grpc_compression_algorithm algorithm) {
  return
      [algorithm](grpc::ClientContext& context) { context.set_compression_algorithm(algorithm); };
}

// gRPC's clients compress what becomes smaller: a field that nobody knows makes sure of it.
std::string Compressible(std::string wire) {
  return absl::StrCat(wire, "\xfa\x7f\xd0\x0f", std::string(2000, 'z'));
}

// Samples of 128 KiB.
v1::NormalizeRequest Zeros(std::int64_t samples) {
  v1::NormalizeRequest request = MakeRequest(kInstanceNorm, {samples, 64, 512});
  std::fill(request.mutable_inputs(0)->mutable_data()->begin(),
            request.mutable_inputs(0)->mutable_data()->end(), '\0');
  return request;
}

TEST(CompressedTest, EveryMethodAnswersAsToAPlainMessage) {
  TestServer server;
  const auto channel = server.NewChannel();
  int methods = 0;
  for (const auto* service : ServicesOf(channel, "")) {
    for (int i = 0; i < service->method_count(); ++i) {
      const std::string path = PathOf(*service->method(i));
      const std::string wire = Compressible(WireFor(*service->method(i), "nothing"));
      for (const grpc_compression_algorithm algorithm : kAlgorithms) {
        const Ending plain = MakeCall(channel, "", path, wire);
        const Ending compressed = MakeCall(channel, By(algorithm), path, wire);
        EXPECT_EQ(compressed.status.error_code(), plain.status.error_code())
            << path << ": " << compressed.status.error_message();
        EXPECT_EQ(compressed.status.error_message(), plain.status.error_message()) << path;
        EXPECT_EQ(compressed.messages, plain.messages) << path;
      }
      ++methods;
    }
  }
  EXPECT_GT(methods, 30);
}

TEST(CompressedTest, TheBitsAreThoseOfAPlainMessage) {
  TestServer server;
  const auto channel = server.NewChannel();
  v1::NormalizeRequest request = MakeRequest(kInstanceNorm, {3, 64, 100, 7});
  // Something that becomes smaller, over many slices and not aligned with them.
  for (std::size_t i = 0; i < request.inputs(0).data().size(); i += 2) {
    (*request.mutable_inputs(0)->mutable_data())[i] = 0;
  }
  const std::string want = [&] {
    v1::NormalizeResponse response;
    response.ParseFromString(
        MakeCall(channel, "", kNormalize, request.SerializeAsString()).last_message);
    return response.outputs(0).data();
  }();
  for (const grpc_compression_algorithm algorithm : kAlgorithms) {
    v1::NormalizeResponse plain;
    plain.ParseFromString(
        MakeCall(channel, By(algorithm), kNormalize, request.SerializeAsString()).last_message);
    EXPECT_TRUE(plain.outputs_size() == 1 && plain.outputs(0).data() == want);
    inference::ModelInferResponse infer;
    infer.ParseFromString(
        MakeCall(channel, By(algorithm), kModelInfer, ToInfer(request).SerializeAsString())
            .last_message);
    EXPECT_TRUE(infer.raw_output_contents_size() == 1 && infer.raw_output_contents(0) == want);
    inference::ModelStreamInferResponse streamed;
    streamed.ParseFromString(MakeCall(channel, By(algorithm),
                                      "/inference.GRPCInferenceService/ModelStreamInfer",
                                      ToInfer(request).SerializeAsString())
                                 .last_message);
    EXPECT_TRUE(streamed.infer_response().raw_output_contents_size() == 1 &&
                streamed.infer_response().raw_output_contents(0) == want);
    StreamClient stream(*v1::NormService::NewStub(channel), By(algorithm));
    ASSERT_TRUE(stream.SendHeader(request));
    ASSERT_TRUE(stream.SendChunk(request.inputs(0).data()));
    stream.HalfClose();
    std::string got;
    while (const auto part = stream.Read()) got += part->chunk();
    EXPECT_TRUE(got == want);
  }
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

TEST(CompressedTest, WhatInflatesBeyondAMessageIsRefused) {
  TestServerOptions options;
  options.accept.max_request_bytes = 1 << 20;
  options.accept.stream.window_bytes = 1 << 20;
  TestServer server(options);
  const auto channel = server.NewChannel();
  const std::string bomb = Compressible(Zeros(64).SerializeAsString());  // 8 MiB.
  for (const grpc_compression_algorithm algorithm : kAlgorithms) {
    for (const char* path : {kNormalize, kModelInfer}) {
      const Ending ending = MakeCall(channel, By(algorithm), path, bomb);
      EXPECT_EQ(ending.status.error_code(), Code::INVALID_ARGUMENT);
      EXPECT_THAT(ending.status.error_message(),
                  HasSubstr("request: more than 1052672 bytes when inflated, wanted at most"));
    }
    const Ending listed =
        MakeCall(channel, By(algorithm), "/normd.v1.NormService/ListModels", bomb);
    EXPECT_THAT(listed.status.error_message(),
                HasSubstr("request: more than 4096 bytes when inflated"));
    StreamClient stream(*v1::NormService::NewStub(channel), By(algorithm));
    ASSERT_TRUE(stream.SendHeader(Zeros(64)));
    ASSERT_TRUE(stream.SendChunk(std::string(4 << 20, '\0')));
    EXPECT_THAT(stream.Finish().error_message(), HasSubstr("bytes when inflated"));
  }
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

TEST(CompressedTest, WhatIsInflatedCountsInTheBudgets) {
  TestServerOptions options;
  options.admission.max_inflight_bytes = 3 << 20;
  TestServer server(options);
  const auto channel = server.NewChannel();
  const std::string bomb = Compressible(Zeros(32).SerializeAsString());  // 4 MiB.
  const Ending ending = MakeCall(channel, By(GRPC_COMPRESS_GZIP), kNormalize, bomb);
  EXPECT_EQ(ending.status.error_code(), Code::INVALID_ARGUMENT);  // Alone it is too large.
  EXPECT_THAT(ending.status.error_message(), HasSubstr("bytes in flight: wanted 65536"));
  EXPECT_EQ(ending.pushback, "");
  server.WaitIdle();
  EXPECT_EQ(server.stop_parts().admission.inflight_bytes(), 0);
}

// As a plain one: neither its bytes nor the request are counted twice.
TEST(CompressedTest, WhatFitsPlainFitsCompressed) {
  TestServerOptions options;
  options.admission.max_inflight_bytes = 17 << 19;  // 8.5 MiB: x, y and little else.
  options.admission.max_inflight_requests = 1;
  TestServer server(options);
  const auto channel = server.NewChannel();
  const std::string request = Zeros(32).SerializeAsString();  // 4 MiB.
  for (const auto algorithm : {GRPC_COMPRESS_NONE, GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    const Ending ending = MakeCall(channel, By(algorithm), kNormalize, request);
    EXPECT_TRUE(ending.status.ok()) << ending.status.error_message();
    server.WaitIdle();
  }
  EXPECT_EQ(server.stop_parts().admission.inflight_bytes(), 0);
}

// Inflate alone.

std::string Deflated(const std::string& text, Encoding encoding) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, encoding == Encoding::kGzip ? 31 : 15, 8,
                         Z_DEFAULT_STRATEGY),
            Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

struct Inflated {
  absl::Status status;
  std::string text;
  std::int64_t taken = 0;
};

Inflated InflateAll(Encoding encoding, const std::vector<std::string>& parts,
                    std::int64_t max_bytes) {
  std::vector<ConstBytes> views;
  for (const std::string& part : parts) {
    views.emplace_back(reinterpret_cast<const std::byte*>(part.data()), part.size());
  }
  Inflated inflated;
  std::deque<std::string> rooms;
  const auto room = [&](std::int64_t bytes) -> absl::StatusOr<MutableBytes> {
    inflated.taken += bytes;
    std::string& memory = rooms.emplace_back(static_cast<std::size_t>(bytes), '\0');
    return MutableBytes(reinterpret_cast<std::byte*>(memory.data()), memory.size());
  };
  const auto total = Inflate(encoding, views, {max_bytes, room, "grpc-encoding"});
  inflated.status = total.status();
  for (const std::string& memory : rooms) inflated.text += memory;
  if (total.ok()) inflated.text.resize(static_cast<std::size_t>(*total));
  return inflated;
}

TEST(InflateTest, GivesWhatWasCompressedWithinTheLimitHoweverItIsCut) {
  std::mt19937_64 random(7);
  for (const Encoding encoding : {Encoding::kDeflate, Encoding::kGzip}) {
    for (const std::size_t size : {0, 1, 1000, 65535, 65536, 65537, 131072, 300000}) {
      std::string text(size, 'a');
      for (char& c : text) c = static_cast<char>('a' + random() % 3);
      const std::string wire = Deflated(text, encoding);
      for (int round = 0; round < 4; ++round) {
        std::vector<std::string> parts;
        for (std::size_t at = 0; at < wire.size();) {
          const std::size_t step = round == 0 ? wire.size() : 1 + random() % (wire.size() / 2 + 1);
          parts.push_back(wire.substr(at, step));
          at += step;
        }
        const auto limit = static_cast<std::int64_t>(size);
        const Inflated whole = InflateAll(encoding, parts, limit);
        EXPECT_TRUE(whole.status.ok()) << size << ": " << whole.status;
        EXPECT_TRUE(whole.text == text) << size;
        EXPECT_LE(whole.taken, limit + 1);
        if (size == 0) continue;
        const Inflated refused = InflateAll(encoding, parts, limit - 1);
        EXPECT_THAT(std::string(refused.status.message()), HasSubstr("when inflated"));
        EXPECT_LE(refused.taken, limit);
      }
    }
  }
}

TEST(InflateTest, RefusesWhatIsNotOfTheEncoding) {
  const std::string gzip = Deflated("some text that is compressed", Encoding::kGzip);
  const auto said = [](Encoding encoding, const std::string& wire) {
    return std::string(InflateAll(encoding, {wire}, 1 << 20).status.message());
  };
  EXPECT_THAT(said(Encoding::kDeflate, gzip), HasSubstr("wanted deflate (grpc-encoding)"));
  EXPECT_THAT(said(Encoding::kGzip, gzip + "x"), HasSubstr("bytes behind its end"));
  EXPECT_THAT(said(Encoding::kGzip, ""), HasSubstr("no end"));
  for (std::size_t size = 1; size < gzip.size(); ++size) {
    EXPECT_THAT(said(Encoding::kGzip, gzip.substr(0, size)), HasSubstr("no end")) << size;
  }
  for (std::size_t at = gzip.size() - 8; at < gzip.size(); ++at) {  // The check sum and the size.
    std::string changed = gzip;
    changed[at] ^= 1;
    EXPECT_THAT(said(Encoding::kGzip, changed), HasSubstr("wanted gzip")) << at;
  }
}

}  // namespace
}  // namespace normd::testing
