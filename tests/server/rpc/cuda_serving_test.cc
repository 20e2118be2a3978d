// The whole service on a device: a thousand mixed requests at once have the bits that each has
// alone, and agree with the CPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/norm.h"
#include "kernels/reference.h"
#include "server/exec/cuda/cuda_device.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "tests/server/rpc/stream_client.h"
#include "tests/server/rpc/test_server.h"
#include "tests/support/tensor.h"
#include "wire/tensor_message.h"

namespace normd::testing {
namespace {

constexpr int kRequests = 1000;
constexpr int kConnections = 16;
constexpr char kFusedLayer[] = "fused_linear_512";

// A demo model, and the shape of its tensors: [n, *`before`, m, *`after`], or [n, *`after`].
struct Kind {
  const char* model;
  std::vector<std::int64_t> before;
  std::vector<std::int64_t> after;
  bool has_spatial;
  std::vector<v1::DataType> dtypes;
};

const std::vector<Kind>& Kinds() {
  static const auto& kinds = *new std::vector<Kind>{
      {"instance_norm_64", {64}, {}, true, {v1::FLOAT32, v1::FLOAT16, v1::FLOAT64}},
      {"instance_norm_64_running", {64}, {}, true, {v1::FLOAT32, v1::BFLOAT16}},
      {"group_norm_64_8", {64}, {}, true, {v1::FLOAT32, v1::BFLOAT16}},
      {"group_norm_320_32_silu_last", {}, {320}, true, {v1::FLOAT32, v1::FLOAT16}},
      {"layer_norm_1024", {}, {1024}, false, {v1::FLOAT32, v1::FLOAT16}},
      {"rms_norm_4096", {}, {4096}, false, {v1::FLOAT32, v1::BFLOAT16}},
      {"batch_norm_64", {64}, {}, true, {v1::FLOAT32}},
      {kFusedLayer, {}, {512}, false, {v1::FLOAT32, v1::FLOAT16, v1::BFLOAT16}},
  };
  return kinds;
}

norm::DType ToDType(v1::DataType dtype) { return *FromProtocol(dtype); }

v1::Tensor RandomTensor(v1::DataType dtype, const std::vector<std::int64_t>& shape,
                        std::mt19937_64& random) {
  std::int64_t elements = 1;
  for (const std::int64_t dim : shape) elements *= dim;
  const norm::DType type = ToDType(dtype);
  std::string data(static_cast<std::size_t>(elements) * norm::SizeOf(type), '\0');
  std::normal_distribution<double> normal(0.5, 2);
  for (std::int64_t i = 0; i < elements; ++i) {
    norm::StoreElement(type, data.data(), i, normal(random));
  }
  v1::Tensor tensor;
  tensor.set_dtype(dtype);
  tensor.mutable_shape()->Assign(shape.begin(), shape.end());
  tensor.set_data(std::move(data));
  return tensor;
}

// Has some kilobytes to some megabytes, small ones far more often.
v1::NormalizeRequest RandomRequest(std::mt19937_64& random) {
  const Kind& kind = Kinds()[random() % Kinds().size()];
  const double exponent = 10 + 10 * std::pow(std::uniform_real_distribution<double>()(random), 2);
  std::int64_t left = static_cast<std::int64_t>(std::exp2(exponent));  // Elements.
  std::vector<std::int64_t> shape = kind.before;
  for (const std::int64_t dim : kind.before) left /= dim;
  for (const std::int64_t dim : kind.after) left /= dim;
  std::int64_t samples = std::max<std::int64_t>(left, 1);
  if (kind.has_spatial) {
    samples = std::clamp<std::int64_t>(static_cast<std::int64_t>(random() % 4) + 1, 1, samples);
    shape.push_back(std::max<std::int64_t>(left / samples, 1));
  }
  shape.insert(shape.end(), kind.after.begin(), kind.after.end());
  shape.insert(shape.begin(), samples);
  v1::NormalizeRequest request;
  request.set_model(kind.model);
  const v1::DataType dtype = kind.dtypes[random() % kind.dtypes.size()];
  *request.add_inputs() = RandomTensor(dtype, shape, random);
  if (request.model() == kFusedLayer) {
    *request.add_inputs() = RandomTensor(dtype, shape, random);
    request.mutable_inputs(0)->set_name("x");
    request.mutable_inputs(1)->set_name("y");
    request.set_precision(static_cast<v1::Precision>(random() % v1::Precision_ARRAYSIZE));
  }
  return request;
}

std::string Describe(const v1::NormalizeRequest& request) {
  std::string text =
      absl::StrCat(request.model(), " ", v1::DataType_Name(request.inputs(0).dtype()));
  for (const std::int64_t dim : request.inputs(0).shape()) absl::StrAppend(&text, " ", dim);
  return text;
}

// The response's bytes; empty, with a failure, for any error.
std::string Answer(v1::NormService::Stub& stub, const v1::NormalizeRequest& request) {
  grpc::ClientContext context;
  v1::NormalizeResponse response;
  const grpc::Status status = stub.Normalize(&context, request, &response);
  EXPECT_TRUE(status.ok()) << Describe(request) << ": " << status.error_message();
  return status.ok() ? response.outputs(0).data() : "";
}

// The CPU computes the fused layer in float32, whatever the precision; the second input makes an
// error up to ten times as large.
double ProductTolerance(v1::Precision precision) {
  switch (precision) {
    case v1::PRECISION_TF32: return 2e-2;
    case v1::PRECISION_BFLOAT16: return 2e-1;
    default: return 1e-4;
  }
}

double Tolerance(const v1::NormalizeRequest& request) {
  const double product = request.model() == kFusedLayer ? ProductTolerance(request.precision()) : 0;
  switch (ToDType(request.inputs(0).dtype())) {
    case norm::DType::kFloat32: return product + 2e-5;
    case norm::DType::kFloat64: return product + 1e-11;
    case norm::DType::kFloat16: return product + std::ldexp(1, -9);
    case norm::DType::kBFloat16: return product + std::ldexp(1, -6);
    default: return product;
  }
}

class CudaServingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  }

  static std::unique_ptr<TestServer> Serve(const std::string& device) {
    TestServerOptions options;
    options.device = device;
    options.queue.limits.max_bytes = std::int64_t{64} << 20;
    options.queue.max_inline_bytes = std::int64_t{256} << 10;
    return std::make_unique<TestServer>(options);
  }
};

TEST_F(CudaServingTest, AThousandMixedRequestsAtOnceHaveTheBitsOfEachAlone) {
  const std::unique_ptr<TestServer> server = Serve("cuda:0");
  std::mt19937_64 random(norm::testing::TestSeed());
  std::vector<v1::NormalizeRequest> requests;
  std::vector<std::string> alone;
  for (int i = 0; i < kRequests; ++i) {
    requests.push_back(RandomRequest(random));
    alone.push_back(Answer(server->stub(), requests.back()));
  }
  ASSERT_FALSE(HasFailure());

  std::vector<std::unique_ptr<v1::NormService::Stub>> stubs;
  for (int i = 0; i < kConnections; ++i) {
    stubs.push_back(v1::NormService::NewStub(server->NewChannel()));
  }
  std::deque<AsyncCall> calls;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    calls.emplace_back(*stubs[i % stubs.size()], requests[i]);
  }
  std::int64_t shared = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const grpc::Status& status = calls[i].Wait();
    ASSERT_TRUE(status.ok()) << Describe(requests[i]) << ": " << status.error_message();
    EXPECT_TRUE(calls[i].response.outputs(0).data() == alone[i]) << Describe(requests[i]);
    shared += calls[i].response.batch().requests() > 1 ? 1 : 0;
  }
  EXPECT_GT(shared, 0);  // Or nothing is shown.
}

// A request of some megabytes, which a stream cuts into pieces.
v1::NormalizeRequest LongRequest(const std::string& model, v1::DataType dtype,
                                 const std::vector<std::int64_t>& shape, std::mt19937_64& random) {
  v1::NormalizeRequest request;
  request.set_model(model);
  *request.add_inputs() = RandomTensor(dtype, shape, random);
  if (model == kFusedLayer) {
    request.mutable_inputs(0)->set_name("x");
    *request.add_inputs() = RandomTensor(dtype, shape, random);
    request.mutable_inputs(1)->set_name("y");
  }
  return request;
}

TEST_F(CudaServingTest, StreamsAtOnceHaveTheBitsOfTheirUnaryCalls) {
  TestServerOptions options;
  options.device = "cuda:0";
  options.queue.limits.max_bytes = std::int64_t{2} << 20;
  options.accept.stream.piece_bytes = 300'000;
  TestServer server(options);
  std::mt19937_64 random(norm::testing::TestSeed() + 2);
  std::vector<v1::NormalizeRequest> requests;
  for (const v1::DataType dtype : {v1::FLOAT32, v1::FLOAT16, v1::BFLOAT16}) {
    requests.push_back(LongRequest(kFusedLayer, dtype, {2311, 512}, random));
    requests.push_back(LongRequest("layer_norm_1024", dtype, {1500, 1024}, random));
    requests.push_back(LongRequest("group_norm_64_8", dtype, {3, 64, 9001}, random));
  }
  requests.push_back(requests.front());
  requests.back().set_precision(v1::PRECISION_BFLOAT16);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&server, &request = requests[i], i] {
      const std::string wanted = Answer(server.stub(), request);
      std::mt19937_64 sizes(norm::testing::TestSeed() + i);
      const StreamResult result =
          NormalizeInChunks(server.stub(), request, [&sizes] { return sizes() % 500'000 + 1; });
      EXPECT_TRUE(result.status.ok()) << Describe(request) << ": " << result.status.error_message();
      EXPECT_TRUE(result.data == wanted) << Describe(request);
      EXPECT_TRUE(result.trailer && result.trailer->pieces() > 5) << Describe(request);
    });
  }
  for (std::thread& thread : threads) thread.join();
  server.WaitIdle();
  EXPECT_EQ(server.Metric("normd_inflight_bytes"), 0);
}

// In a process of its own, because it loses its context: a kernel reads from where no memory is,
// and the server finds its device lost. Ends the process with 0 if all was as it must be.
[[noreturn]] void LoseTheDeviceOfAServer() {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("server"));
  TestServerOptions options;
  options.device = "cuda:0";
  options.queue.max_inline_bytes = std::int64_t{256} << 10;
  TestServer server(options);
  std::mt19937_64 random(1);
  const v1::NormalizeRequest request =
      LongRequest("group_norm_64_8", v1::FLOAT32, {1, 64, 8192}, random);
  Answer(server.stub(), request);
  EXPECT_EQ(server.Metric("normd_ready"), 1);
  const double lanes = server.Metric("normd_lanes{device=\"cuda:0\",state=\"working\"}");
  EXPECT_GT(lanes, 0);

  const std::unique_ptr<Device> device = *OpenCudaDevice(0);
  const auto stream = *device->CreateStream(4096);
  const Buffer memory = *device->Allocate(MemoryKind::kDevice, 4096);
  norm::NormParams params;
  params.gamma.data = reinterpret_cast<const void*>(std::uintptr_t{1} << 60);
  auto* rows = const_cast<std::byte*>(memory.data());
  const norm::Segment segment{rows, rows, 1, 4};
  static_cast<void>(
      stream->Normalize(norm::InstanceNormSpec(64, norm::DType::kFloat32), params, &segment, 1));
  EXPECT_FALSE(stream->Wait().ok());

  int internal = 0;
  grpc::Status status;
  for (int i = 0; i < 100 && status.error_code() != grpc::StatusCode::UNAVAILABLE; ++i) {
    grpc::ClientContext context;
    v1::NormalizeResponse response;
    status = server.stub().Normalize(&context, request, &response);
    internal += status.error_code() == grpc::StatusCode::INTERNAL ? 1 : 0;
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_EQ(internal, lanes);  // One batch for each.
  EXPECT_EQ(server.Metric("normd_ready"), 0);
  EXPECT_EQ(server.Metric("normd_lanes{device=\"cuda:0\",state=\"working\"}"), 0);
  EXPECT_EQ(server.Metric("normd_lanes{device=\"cuda:0\",state=\"retired\"}"), lanes);
  std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
}

TEST_F(CudaServingTest, ALostDeviceEndsRequestsWithInternalAndThenTurnsReadinessOff) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(LoseTheDeviceOfAServer(), ::testing::ExitedWithCode(0),
              "retires, 0 of [0-9]+ left: INTERNAL");
}

TEST_F(CudaServingTest, AgreesWithTheCpu) {
  const std::unique_ptr<TestServer> cuda = Serve("cuda:0");
  const std::unique_ptr<TestServer> cpu = Serve("cpu");
  std::mt19937_64 random(norm::testing::TestSeed() + 1);
  for (int i = 0; i < 200; ++i) {
    const v1::NormalizeRequest request = RandomRequest(random);
    const norm::DType dtype = ToDType(request.inputs(0).dtype());
    const std::string got = Answer(cuda->stub(), request);
    const std::string wanted = Answer(cpu->stub(), request);
    ASSERT_EQ(got.size(), wanted.size());
    const auto elements = static_cast<std::int64_t>(got.size() / norm::SizeOf(dtype));
    for (std::int64_t j = 0; j < elements; ++j) {
      const double a = norm::LoadElement(dtype, got.data(), j);
      const double b = norm::LoadElement(dtype, wanted.data(), j);
      ASSERT_LE(std::abs(a - b), Tolerance(request) * std::max(1.0, std::abs(b)))
          << Describe(request) << ", element " << j << ": " << a << ", on the CPU " << b;
    }
  }
}

}  // namespace
}  // namespace normd::testing
