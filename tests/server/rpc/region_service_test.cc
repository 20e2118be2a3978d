// Tensors in shared memory that clients register, in requests of both protocols.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/server/rpc/region_fixture.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Code = grpc::StatusCode;

template <typename Texts>
bool Contains(const char* text, const Texts& texts) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

class RegionServiceTest : public RegionFixture {};

TEST_F(RegionServiceTest, GivesTheBitsOfNormalizeAndTheResponseHasNoData) {
  RegisterOk(file_, kFileBytes);
  const v1::NormalizeRequest plain = Plain();
  WriteInput(file_, plain);
  const std::string expected = Expected(plain);
  inference::ModelInferResponse response;
  const grpc::Status status = Infer(InRegions({}, {"r", kY}), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(OutputIn(file_, kY), expected);
  ASSERT_EQ(response.outputs_size(), 1);
  const auto& parameters = response.outputs(0).parameters();
  EXPECT_EQ(parameters.at("shared_memory_region").string_param(), "r");
  EXPECT_EQ(parameters.at("shared_memory_offset").int64_param(), kY);
  EXPECT_EQ(parameters.at("shared_memory_byte_size").int64_param(), kTensorBytes);
  ASSERT_EQ(response.raw_output_contents_size(), 1);
  EXPECT_EQ(response.raw_output_contents(0), "");
  EXPECT_EQ(server_.Metric("normd_shared_tensor_bytes_total{direction=\"in\",memory=\"host\"}"),
            kTensorBytes);
  EXPECT_EQ(server_.Metric("normd_shared_tensor_bytes_total{direction=\"out\",memory=\"host\"}"),
            kTensorBytes);
  EXPECT_EQ(NamedRegions(), 1);
}

TEST_F(RegionServiceTest, NormalizeTakesRegionsTooAndItsResponseRepeatsThem) {
  RegisterOk(file_, kFileBytes);
  const v1::NormalizeRequest plain = Plain();
  WriteInput(file_, plain);
  const std::string expected = Expected(plain);
  v1::NormalizeRequest request = ToNormalize(InRegions({}, {"r", kY, kTensorBytes + 100}));
  for (const char* name : {"y", ""}) {
    std::memset(file_.data() + kY, 0, kTensorBytes);
    request.mutable_outputs(0)->set_name(name);
    v1::NormalizeResponse response;
    const grpc::Status status = Normalize(request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(OutputIn(file_, kY), expected);
    ASSERT_EQ(response.outputs_size(), 1);
    const v1::Tensor& y = response.outputs(0);
    EXPECT_EQ(y.data(), "");
    EXPECT_EQ(y.dtype(), v1::FLOAT32);
    EXPECT_EQ(y.shape_size(), 3);
    EXPECT_EQ(y.shared_memory().region(), "r");
    EXPECT_EQ(y.shared_memory().offset(), kY);
    EXPECT_EQ(y.shared_memory().byte_size(), kTensorBytes) << "the real size";
  }
  EXPECT_TRUE(Unregister("r", "refuse").ok()) << "a request that has ended holds nothing";
}

TEST_F(RegionServiceTest, AStreamOfOneTensorTakesNone) {
  RegisterOk(file_, kFileBytes);
  v1::NormalizeStreamRequest input;
  *input.mutable_header() = ToNormalize(InRegions({}, {}));
  v1::NormalizeStreamRequest output = input;
  input.mutable_header()->clear_outputs();
  output.mutable_header()->mutable_inputs(0)->clear_shared_memory();
  for (const v1::NormalizeStreamRequest& message : {input, output}) {
    grpc::ClientContext context;
    const auto stream = server_.stub().NormalizeStream(&context);
    EXPECT_TRUE(stream->Write(message));
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message(),
              absl::StrCat(message.header().outputs().empty() ? "inputs" : "outputs",
                           "[0].shared_memory: of a stream's tensor, wanted its data in chunks"));
  }
}

// What a client finds among the extensions it can use: each of them has its calls.
TEST(RegionExtensionTest, IsToldWhereItsCallsAre) {
  for (const bool named : {true, false}) {
    TestServerOptions options;
    options.shared_memory = true;
    options.named_regions = named;
    TestServer server(options);
    const auto stub = inference::GRPCInferenceService::NewStub(server.NewChannel());
    grpc::ClientContext context;
    inference::ServerMetadataResponse metadata;
    ASSERT_TRUE(stub->ServerMetadata(&context, {}, &metadata).ok());
    EXPECT_EQ(Contains("system_shared_memory", metadata.extensions()), named);
    EXPECT_FALSE(Contains("cuda_shared_memory", metadata.extensions()));
    grpc::ClientContext registration;
    inference::SystemSharedMemoryRegisterResponse unused;
    const grpc::Status status = stub->SystemSharedMemoryRegister(&registration, {}, &unused);
    EXPECT_EQ(status.error_code() != Code::UNIMPLEMENTED, named) << status.error_message();
  }
}

TEST_F(RegionServiceTest, EachTensorChoosesItsPlane) {
  RegisterOk(file_, kFileBytes);
  const v1::NormalizeRequest plain = Plain();
  WriteInput(file_, plain);
  const std::string expected = Expected(plain);
  inference::ModelInferRequest request = InRegions({}, {});
  request.clear_outputs();
  inference::ModelInferResponse response;
  ASSERT_TRUE(Infer(request, &response).ok());
  EXPECT_EQ(response.raw_output_contents(0), expected);
  v1::NormalizeResponse normalized;
  ASSERT_TRUE(Normalize(ToNormalize(request), &normalized).ok());
  EXPECT_EQ(normalized.outputs(0).data(), expected);
  EXPECT_FALSE(normalized.outputs(0).has_shared_memory());
  v1::NormalizeRequest placed = plain;
  *placed.add_outputs() = ToNormalize(InRegions({}, {"r", kY})).outputs(0);
  ASSERT_TRUE(Normalize(placed).ok());
  EXPECT_EQ(OutputIn(file_, kY), expected);
  std::memset(file_.data() + kY, 0, kTensorBytes);
  request = ToInfer(plain);
  auto& output = *request.add_outputs();
  output.set_name("y");
  Place({"r", kY}, &output);
  ASSERT_TRUE(Infer(request, &response).ok());
  EXPECT_EQ(OutputIn(file_, kY), expected);
}

// At any byte: an input is then copied or read sample by sample.
TEST_F(RegionServiceTest, AnInputMayLieAtAnyOffset) {
  RegisterOk(file_, kFileBytes - 3, "r", 3);
  const v1::NormalizeRequest plain = Plain();
  const std::string expected = Expected(plain);
  for (const std::int64_t offset : {0, 1, 2, 5, 4093}) {
    WriteInput(file_, plain, static_cast<std::size_t>(3 + offset));
    const grpc::Status status = Infer(InRegions({"r", offset}, {"r", 24573}));
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(OutputIn(file_, 3 + 24573), expected) << offset;
  }
}

TEST_F(RegionServiceTest, RequestsOfDifferentPlanesAndProtocolsRideInOneBatch) {
  RegisterOk(file_, kFileBytes);
  const v1::NormalizeRequest plain = Plain();
  WriteInput(file_, plain);
  const std::string expected = Expected(plain);
  server_.WaitIdle();
  StalledCall first(server_, plain);  // In the lane, so that the others wait together.
  AsyncCall over_messages(server_.stub(), Plain(2));
  grpc::Status in_region;
  std::thread other([&] { in_region = Infer(InRegions({}, {"r", kY})); });
  WaitUntil([&] { return server_.queue().waiting_requests() >= 2; });
  server_.gate().Open();
  other.join();
  ASSERT_TRUE(over_messages.Wait().ok());
  ASSERT_TRUE(in_region.ok()) << in_region.error_message();
  EXPECT_EQ(over_messages.response.batch().requests(), 2);
  EXPECT_EQ(OutputIn(file_, kY), expected);
}

TEST_F(RegionServiceTest, StatusTellsWhatIsRegistered) {
  RegisterOk(file_, 8192, "a", 4096);
  RegisterOk(file_, 100, "b");
  inference::SystemSharedMemoryStatusResponse response;
  ASSERT_TRUE(Status("", &response).ok());
  ASSERT_EQ(response.regions_size(), 2);
  const auto& a = response.regions().at("a");
  EXPECT_EQ(a.name(), "a");
  EXPECT_EQ(a.key(), file_.key());
  EXPECT_EQ(a.offset(), 4096U);
  EXPECT_EQ(a.byte_size(), 8192U);
  response.Clear();
  ASSERT_TRUE(Status("b", &response).ok());
  EXPECT_EQ(response.regions_size(), 1);
  EXPECT_EQ(Status("c", &response).error_code(), Code::NOT_FOUND);
  ASSERT_TRUE(Unregister("").ok());
  response.Clear();
  ASSERT_TRUE(Status("", &response).ok());
  EXPECT_EQ(response.regions_size(), 0);
}

TEST_F(RegionServiceTest, SharedMemoryCountsForNoBudget) {
  RegisterOk(file_, kFileBytes);
  StalledInfer call(*this, InRegions({}, {"r", kY}));
  // What registered the region may not have left yet, as it leaves after its response.
  const absl::Time until = absl::Now() + absl::Seconds(10);
  WaitUntil([&] { return server_.Metric("normd_inflight_bytes") == 0 || absl::Now() >= until; });
  EXPECT_EQ(server_.Metric("normd_inflight_bytes"), 0);
  call.FinishOk();
}

TEST_F(RegionServiceTest, AStreamOfRequestsTakesRegionsToo) {
  RegisterOk(file_, kFileBytes);
  const v1::NormalizeRequest plain = Plain();
  WriteInput(file_, plain);
  InferStreamClient stream(server_.NewChannel());
  ASSERT_TRUE(stream.Send(InRegions({}, {"r", kY})));
  ASSERT_TRUE(stream.Send(InRegions({"nothing"}, {"r", kY})));
  const auto good = stream.Read();
  const auto bad = stream.Read();
  ASSERT_TRUE(good.has_value() && bad.has_value());
  EXPECT_EQ(good->error_message(), "");
  EXPECT_THAT(bad->error_message(), HasSubstr("region \"nothing\" is not registered"));
  EXPECT_EQ(OutputIn(file_, kY), Expected(plain));
  stream.HalfClose();
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_TRUE(Unregister("r", "refuse").ok()) << "a request that has ended holds nothing";
}

// A norm's y may be exactly its x.
TEST_F(RegionServiceTest, AnOutputMayBeExactlyTheInputThatItOverwrites) {
  RegisterOk(file_, kFileBytes);
  const v1::NormalizeRequest plain = Plain();
  WriteInput(file_, plain);
  const grpc::Status status = Infer(InRegions({}, {}));
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(OutputIn(file_, 0), Expected(plain));
}

// What the server tells of the memory that clients share, and where outputs go that are not named.

class RegionListTest : public RegionFixture {};

TEST_F(RegionListTest, TheOldestComesFirstWithItsAgeAndSize) {
  EXPECT_EQ(List().regions_size(), 0);
  RegisterOk(file_, 8192, "z", 4096);
  RegisterOk(file_, 100, "a");
  const v1::ListSharedMemoryResponse first = List();
  ASSERT_EQ(first.regions_size(), 2);
  const v1::SharedMemoryInfo& z = first.regions(0);
  EXPECT_EQ(z.name(), "z");
  EXPECT_EQ(z.kind(), v1::SharedMemoryInfo::NAMED);
  EXPECT_EQ(z.owner(), "");
  EXPECT_EQ(z.key(), file_.key());
  EXPECT_EQ(z.offset(), 4096);
  EXPECT_EQ(z.byte_size(), 8192);
  EXPECT_TRUE(z.writable());
  EXPECT_FALSE(z.in_use());
  EXPECT_FALSE(z.broken());
  EXPECT_EQ(first.regions(1).name(), "a");
  EXPECT_GE(z.age_ns(), first.regions(1).age_ns());
  EXPECT_GT(List().regions(0).age_ns(), z.age_ns());
  ASSERT_TRUE(Unregister("z").ok());
  ASSERT_EQ(List().regions_size(), 1);
  EXPECT_EQ(List().regions(0).name(), "a");
}

TEST_F(RegionListTest, SaysWhatIsInUse) {
  RegisterOk(file_, kFileBytes, "r");
  RegisterOk(file_, 100, "idle");
  StalledInfer call(*this, InRegions({}, {"r", kY}));
  const v1::ListSharedMemoryResponse during = List();
  call.FinishOk();
  ASSERT_EQ(during.regions_size(), 2);
  EXPECT_TRUE(during.regions(0).in_use());
  EXPECT_FALSE(during.regions(1).in_use());
  server_.WaitIdle();
  EXPECT_FALSE(List().regions(0).in_use());
}

// What says only where an output goes changes nothing else in the response.
TEST_F(RegionListTest, UnnamedOutputsComeAsIfNoneWereNamed) {
  RegisterOk(file_, kFileBytes);
  const v1::NormalizeRequest plain = Plain();
  const std::string expected = Expected(plain);
  v1::NormalizeRequest placed = plain;
  v1::WantedOutput& output = *placed.add_outputs();
  output.set_name("y");
  output.mutable_shared_memory()->set_region("r");
  output.mutable_shared_memory()->set_byte_size(kTensorBytes);
  for (const bool unnamed : {false, true}) {
    placed.set_unnamed_outputs(unnamed);
    v1::NormalizeResponse response;
    const grpc::Status status = Normalize(placed, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response.outputs_size(), 1);
    EXPECT_EQ(response.outputs(0).name(), unnamed ? "" : "y");
    EXPECT_EQ(response.outputs(0).shared_memory().region(), "r");
    EXPECT_EQ(OutputIn(file_, 0), expected);
  }
  v1::NormalizeRequest asked = plain;
  asked.add_outputs()->set_name("rstd");
  for (const bool unnamed : {false, true}) {
    asked.set_unnamed_outputs(unnamed);
    v1::NormalizeResponse response;
    const grpc::Status status = Normalize(asked, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.outputs_size(), unnamed ? 2 : 1);
    for (const v1::Tensor& tensor : response.outputs()) {
      if (tensor.name() != "rstd") {
        EXPECT_EQ(tensor.data(), expected);
      }
    }
  }
}

// What requests in regions hold of the budgets: what is copied.

class BoundedRequestTest : public RegionFixture {
 protected:
  BoundedRequestTest() : RegionFixture(Bounded()) {}
  static TestServerOptions Bounded() {
    TestServerOptions options = WithSharedMemory();
    options.accept.max_request_bytes = 16'000;
    return options;
  }
};

// Indexes are copied out of a region: no more of them than a request may have. Here they are wrong,
// too, which nobody has looked at.
TEST_F(BoundedRequestTest, SizesAreJudgedBeforeIndexesAreCopied) {
  LoadStyles();
  RegisterOk(file_, kFileBytes);
  v1::NormalizeRequest request;
  request.set_model("styles");
  const auto add = [&](const char* name, v1::DataType dtype, std::vector<std::int64_t> shape,
                       std::int64_t bytes) {
    v1::Tensor& input = *request.add_inputs();
    input.set_name(name);
    input.set_dtype(dtype);
    input.mutable_shape()->Add(shape.begin(), shape.end());
    input.mutable_shared_memory()->set_region("r");
    input.mutable_shared_memory()->set_byte_size(bytes);
  };
  add("x", v1::FLOAT32, {2, 64, 33}, kTensorBytes);
  add("style_index", v1::INT64, {2}, 16);
  const grpc::Status status = Normalize(request);
  EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("inputs: 16912 bytes, wanted at most 16000"));
}

class BudgetTest : public RegionFixture {
 protected:
  // Held for a request of 4096 samples in regions: its indexes, which are copied, and each sample's
  // weight and bias.
  static constexpr std::int64_t kCount = 4096;
  static constexpr std::int64_t kIndexBytes = kCount * 8;
  static constexpr std::int64_t kHeldBytes = kIndexBytes + 2 * kCount * 64 * 4;
  static constexpr std::int64_t kRegionBytes = 3 << 20;

  explicit BudgetTest(std::int64_t budget = kHeldBytes) : RegionFixture(WithBudget(budget)) {}
  static TestServerOptions WithBudget(std::int64_t budget) {
    TestServerOptions options = WithSharedMemory();
    options.admission.max_inflight_bytes = budget;
    return options;
  }
  void SetUp() override {
    LoadStyles();
    RegisterOk(large_, kRegionBytes);
    server_.WaitIdle();  // Calls hold their messages' bytes until they are over.
  }
  // x of float32 at 0, y over it, indexes behind it from `offset` on.
  static v1::NormalizeRequest Styled(std::int64_t offset) {
    constexpr std::int64_t kBytes = kCount * 64 * 4;
    v1::NormalizeRequest request;
    request.set_model("styles");
    const auto place = [](auto* tensor, const char* name, std::int64_t at, std::int64_t bytes) {
      tensor->set_name(name);
      tensor->mutable_shared_memory()->set_region("r");
      tensor->mutable_shared_memory()->set_offset(at);
      tensor->mutable_shared_memory()->set_byte_size(bytes);
    };
    v1::Tensor& x = *request.add_inputs();
    place(&x, "x", 0, kBytes);
    x.set_dtype(v1::FLOAT32);
    for (const std::int64_t dim : {kCount, std::int64_t{64}, std::int64_t{1}}) x.add_shape(dim);
    v1::Tensor& indexes = *request.add_inputs();
    place(&indexes, "style_index", kBytes + offset, kIndexBytes);
    indexes.set_dtype(v1::INT64);
    indexes.add_shape(kCount);
    place(request.add_outputs(), "y", 0, kBytes);
    return request;
  }
  // A request that ends well, or in an index that is none.
  void Spoil(std::size_t offset) { std::memset(large_.data() + (1 << 20) + offset, 0x7f, 8); }

  SharedFile large_{kRegionBytes};
};

// Indexes count once, at any address, and are what fills this budget exactly.
TEST_F(BudgetTest, IndexesAreAdmittedBeforeTheyAreCopied) {
  for (const std::int64_t offset : {0, 8, 3}) {
    const grpc::Status status = Normalize(Styled(offset));
    EXPECT_TRUE(status.ok()) << offset << ": " << status.error_message();
    server_.WaitIdle();
  }
  Spoil(0);
  for (int i = 0; i < 3; ++i) {
    const grpc::Status status = Normalize(Styled(0));
    EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("input \"style_index\": data[0]: "));
    EXPECT_TRUE(Unregister("r", "refuse").ok()) << "a request that was refused uses nothing";
    RegisterOk(large_, kRegionBytes);
    server_.WaitIdle();
  }
  const grpc::Status after = Normalize(Styled(8));
  EXPECT_TRUE(after.ok()) << "refusals gave the budget back: " << after.error_message();
  server_.WaitIdle();
  EXPECT_EQ(server_.Metric("normd_inflight_bytes"), 0);
}

class SmallBudgetTest : public BudgetTest {
 protected:
  SmallBudgetTest() : BudgetTest(kHeldBytes - 1) {}
};

// The indexes are wrong, which nobody has looked at: so none were copied.
TEST_F(SmallBudgetTest, RefusedRequestsCopyNoIndexes) {
  for (const std::size_t offset : {0, 3}) {
    Spoil(offset);
    const grpc::Status status = Normalize(Styled(static_cast<std::int64_t>(offset)));
    EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("request: needs 2129920 bytes, wanted at most"));
    EXPECT_THAT(status.error_message(), Not(HasSubstr("data[")));
    EXPECT_TRUE(Unregister("r", "refuse").ok()) << "a request that was refused uses nothing";
    RegisterOk(large_, kRegionBytes);
  }
}

}  // namespace
}  // namespace normd::testing
