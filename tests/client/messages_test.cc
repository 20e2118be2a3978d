#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/request.h"
#include "client/response.h"
#include "client/tensor/random.h"
#include "inference/grpc_service.pb.h"
#include "tests/support/temp_repository.h"
#include "wire/data_type.h"

namespace normd::client {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

std::string DataOf(const OutputTensor& output) {
  std::string data(output.size_bytes(), '\0');
  output.CopyTo(absl::MakeSpan(reinterpret_cast<std::byte*>(data.data()), data.size()));
  return data;
}

// The bytes in slices of `size` each.
grpc::ByteBuffer Cut(const std::string& bytes, std::size_t size) {
  std::vector<grpc::Slice> slices;
  for (std::size_t at = 0; at < bytes.size(); at += size)
    slices.emplace_back(bytes.substr(at, size));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

v1::NormalizeResponse GoodResponse() {
  v1::NormalizeResponse message;
  message.set_model("m");
  message.set_version(3);
  message.mutable_stages()->set_queue_ns(11);
  message.mutable_stages()->set_compute_ns(22);
  message.mutable_batch()->set_requests(4);
  message.mutable_batch()->set_lane("cpu:0");
  v1::Tensor* output = message.add_outputs();
  output->set_dtype(v1::FLOAT16);
  output->add_shape(3);
  output->add_shape(7);
  for (int i = 0; i < 42; ++i) output->mutable_data()->push_back(static_cast<char>(i));
  return message;
}

// The message of a request for model "m" with these inputs.
absl::StatusOr<grpc::ByteBuffer> EncodeRequest(std::vector<NamedTensor> inputs) {
  NormalizeRequest request;
  request.model = "m";
  request.inputs = std::move(inputs);
  const absl::StatusOr<EncodedRequest> encoded = EncodedRequest::Create(request);
  if (!encoded.ok()) return encoded.status();
  return encoded->message();
}

// A request for "some_model" that says all that both protocols have words for.
NormalizeRequest WholeRequest(std::vector<NamedTensor> inputs) {
  NormalizeRequest request;
  request.protocol = Protocol::kOpenInference;
  request.model = "some_model";
  request.version = 7;
  request.priority = v1::PRIORITY_LOW;
  request.queue_timeout = Duration(12345);
  request.inputs = std::move(inputs);
  return request;
}

// A request with x and y in a region, x at 64 and y at 128.
NormalizeRequest InRegion(Protocol protocol, absl::Span<std::byte> memory,
                          std::shared_ptr<const void> owner) {
  NormalizeRequest request;
  request.protocol = protocol;
  request.model = "m";
  request.inputs = {
      {"x", {norm::DType::kFloat32, Shape::Create({4}).value(), memory.first(16)}, owner, "r", 64}};
  request.outputs = {"mean", "y"};
  request.shared_outputs = {{"y", "r", 128, memory.subspan(16, 32), owner},
                            {"rstd", "r", 160, memory.subspan(48, 16), owner}};
  return request;
}

TEST(EncodeRequestTest, NamesTensorsInSharedMemoryAndHasNoneOfTheirBytes) {
  std::vector<std::byte> memory(64, std::byte{0x5a});
  const auto encoded =
      EncodedRequest::Create(InRegion(Protocol::kNormd, absl::MakeSpan(memory), nullptr));
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  v1::NormalizeRequest message;
  ASSERT_TRUE(message.ParseFromString(Flatten(encoded->message())));
  EXPECT_EQ(message.inputs(0).data(), "");
  EXPECT_EQ(message.inputs(0).shared_memory().region(), "r");
  EXPECT_EQ(message.inputs(0).shared_memory().offset(), 64);
  EXPECT_EQ(message.inputs(0).shared_memory().byte_size(), 16);
  ASSERT_EQ(message.outputs_size(), 3);
  EXPECT_EQ(message.outputs(0).name(), "mean");
  EXPECT_FALSE(message.outputs(0).has_shared_memory());
  EXPECT_EQ(message.outputs(1).name(), "y");
  EXPECT_EQ(message.outputs(1).shared_memory().byte_size(), 32);
  EXPECT_EQ(message.outputs(2).name(), "rstd") << "wanted beside the others";

  const auto infer =
      EncodedRequest::Create(InRegion(Protocol::kOpenInference, absl::MakeSpan(memory), nullptr));
  inference::ModelInferRequest other;
  ASSERT_TRUE(other.ParseFromString(Flatten(infer->message())));
  EXPECT_EQ(other.raw_input_contents_size(), 0);
  EXPECT_EQ(other.inputs(0).parameters().at("shared_memory_region").string_param(), "r");
  EXPECT_EQ(other.outputs(2).parameters().at("shared_memory_offset").int64_param(), 160);
  EXPECT_EQ(other.outputs(0).parameters().size(), 0U);
}

TEST(NormalizeResponseTest, ShowsTheSharedMemoryOfItsRequestAndNoOther) {
  std::vector<std::byte> memory(64, std::byte{0x5a});
  auto owner = std::make_shared<int>(0);
  std::weak_ptr<int> owned = owner;
  auto encoded =
      EncodedRequest::Create(InRegion(Protocol::kNormd, absl::MakeSpan(memory), std::move(owner)));
  ASSERT_TRUE(encoded.ok());
  v1::NormalizeResponse message;
  v1::Tensor& y = *message.add_outputs();
  y.set_dtype(v1::FLOAT32);
  y.add_shape(5);
  y.mutable_shared_memory()->set_region("r");
  y.mutable_shared_memory()->set_offset(128);
  y.mutable_shared_memory()->set_byte_size(20);
  const auto decode = [&] {
    return NormalizeResponse::Decode(Cut(message.SerializeAsString(), 7), Protocol::kNormd,
                                     encoded->shared());
  };
  {
    auto response = decode();
    ASSERT_TRUE(response.ok()) << response.status();
    encoded = absl::NotFoundError("");
    EXPECT_FALSE(owned.expired()) << "the response holds its memory";
    ASSERT_EQ(response->outputs()[0].pieces().size(), 1U);
    EXPECT_EQ(response->outputs()[0].pieces()[0].data(), memory.data() + 16);
    EXPECT_EQ(response->outputs()[0].size_bytes(), 20U);
  }
  EXPECT_TRUE(owned.expired());
  encoded = EncodedRequest::Create(InRegion(Protocol::kNormd, absl::MakeSpan(memory), nullptr));
  for (const auto& change : {+[](v1::SharedMemory& part) { part.set_region("s"); },
                             +[](v1::SharedMemory& part) { part.set_offset(127); },
                             +[](v1::SharedMemory& part) { part.set_byte_size(33); },
                             +[](v1::SharedMemory& part) { part.set_byte_size(-1); },
                             +[](v1::SharedMemory& part) { part.set_byte_size(16); }}) {
    const v1::SharedMemory good = y.shared_memory();
    change(*y.mutable_shared_memory());
    EXPECT_EQ(decode().status().code(), absl::StatusCode::kInternal) << y.DebugString();
    *y.mutable_shared_memory() = good;
  }
  EXPECT_EQ(NormalizeResponse::Decode(Cut(message.SerializeAsString(), 7)).status().code(),
            absl::StatusCode::kInternal)
      << "of a request without any";
}

TEST(EncodeRequestTest, IsTheMessageThatProtobufReadsInBothProtocols) {
  const Tensor other = test::RandomFloats({2, 500}, 2);
  const TensorView empty{norm::DType::kFloat32, Shape::Create({0, 8}).value(), {}};
  for (const norm::DType dtype : {norm::DType::kFloat32, norm::DType::kFloat64,
                                  norm::DType::kFloat16, norm::DType::kBFloat16}) {
    const Tensor tensor = RandomTensor(dtype, Shape::Create({2, 300, 1}).value(), 0, 1, 1).value();
    NormalizeRequest request = WholeRequest({tensor.named("x"), other.named("y"), {"", empty, {}}});
    const auto infer = EncodedRequest::Create(request);
    ASSERT_TRUE(infer.ok()) << infer.status();
    EXPECT_EQ(infer->protocol(), Protocol::kOpenInference);
    request.protocol = Protocol::kNormd;
    request.precision = v1::PRECISION_TF32;
    const auto plain = EncodedRequest::Create(request);
    ASSERT_TRUE(plain.ok()) << plain.status();
    v1::NormalizeRequest message;
    ASSERT_TRUE(message.ParseFromString(Flatten(plain->message())));
    EXPECT_EQ(message.model(), "some_model");
    EXPECT_EQ(message.version(), 7);
    EXPECT_EQ(message.priority(), v1::PRIORITY_LOW);
    EXPECT_EQ(message.queue_timeout_ns(), 12345);
    EXPECT_EQ(message.precision(), v1::PRECISION_TF32);
    ASSERT_EQ(message.inputs_size(), 3);
    inference::ModelInferRequest infer_message;
    ASSERT_TRUE(infer_message.ParseFromString(Flatten(infer->message())));
    EXPECT_EQ(infer_message.model_name(), "some_model");
    EXPECT_EQ(infer_message.model_version(), "7");
    EXPECT_EQ(infer_message.parameters().at("priority").uint64_param(), 3u);
    EXPECT_EQ(infer_message.parameters().at("timeout").int64_param(), 13);  // Rounded up.
    ASSERT_EQ(infer_message.inputs_size(), 3);
    ASSERT_EQ(infer_message.raw_input_contents_size(), 3);
    for (int i = 0; i < 3; ++i) {
      const auto& [name, view, owner, region, offset] = request.inputs[static_cast<std::size_t>(i)];
      const std::string data(reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size());
      EXPECT_EQ(message.inputs(i).name(), name);
      EXPECT_EQ(static_cast<int>(message.inputs(i).dtype()), static_cast<int>(view.dtype));
      EXPECT_THAT(message.inputs(i).shape(), ElementsAreArray(view.shape.dims()));
      EXPECT_TRUE(message.inputs(i).data() == data);
      EXPECT_EQ(infer_message.inputs(i).name(), name);
      EXPECT_EQ(infer_message.inputs(i).datatype(), NamesOf(view.dtype).inference);
      EXPECT_THAT(infer_message.inputs(i).shape(), ElementsAreArray(view.shape.dims()));
      EXPECT_TRUE(infer_message.raw_input_contents(i) == data);
    }
  }
}

TEST(EncodeRequestTest, TheOpenInferenceProtocolLeavesOutWhatIsNotAskedForAndHasNoPrecision) {
  const TensorView empty{norm::DType::kFloat32, Shape::Create({0, 8}).value(), {}};
  NormalizeRequest request;
  request.protocol = Protocol::kOpenInference;
  request.model = "m";
  request.inputs = {{"", empty, nullptr}};
  inference::ModelInferRequest message;
  ASSERT_TRUE(message.ParseFromString(Flatten(EncodedRequest::Create(request)->message())));
  EXPECT_EQ(message.model_version(), "");
  EXPECT_EQ(message.parameters_size(), 0);
  request.precision = v1::PRECISION_TF32;
  EXPECT_EQ(EncodedRequest::Create(request).status().message(),
            "precision: PRECISION_TF32, wanted none: the Open Inference Protocol does not have it");
}

TEST(EncodeRequestTest, RefersToTheTensorAndHoldsItsOwner) {
  auto memory = std::make_shared<std::vector<std::byte>>(1 << 16);
  const std::weak_ptr<const void> watch = memory;
  const TensorView view{norm::DType::kFloat32, Shape::Create({1 << 14}).value(), *memory};
  {
    const auto buffer = EncodeRequest({{"", view, std::exchange(memory, nullptr)}});
    ASSERT_TRUE(buffer.ok());
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(buffer->Dump(&slices).ok());
    EXPECT_EQ(slices.back().begin(), reinterpret_cast<const std::uint8_t*>(view.bytes.data()));
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(EncodeRequestTest, RefusesMoreThanAMessageCarries) {
  // Nothing reads the bytes of a request that is refused.
  const std::byte one{};
  const TensorView huge{norm::DType::kFloat32, Shape::Create({std::int64_t{1} << 29}).value(),
                        absl::MakeConstSpan(&one, std::size_t{1} << 31)};
  const auto buffer = EncodeRequest({{"", huge, nullptr}});
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(buffer.status().message()), HasSubstr("2147483648 bytes"));
}

TEST(DecodeResponseTest, ReadsSeveralOutputsOfTheirOwnTypeAndShapeFromAnySlicesEmptyOnesAmongThem) {
  v1::NormalizeResponse message = GoodResponse();
  message.mutable_outputs(0)->set_name("y");
  v1::Tensor* sum = message.add_outputs();
  sum->set_name("sum");
  sum->set_dtype(v1::FLOAT64);
  sum->add_shape(2);
  sum->set_data("sixteen bytes of");
  v1::Tensor* none = message.add_outputs();
  none->set_name("none");
  none->set_dtype(v1::FLOAT32);
  none->add_shape(0);
  const std::string wire = message.SerializeAsString();
  for (std::size_t size = 1; size <= wire.size(); ++size) {
    std::vector<grpc::Slice> slices;
    for (std::size_t at = 0; at < wire.size(); at += size) {
      slices.emplace_back();
      slices.emplace_back(wire.substr(at, size));
    }
    const auto decoded = NormalizeResponse::Decode(grpc::ByteBuffer(slices.data(), slices.size()));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->model(), "m");
    EXPECT_EQ(decoded->version(), 3);
    EXPECT_EQ(decoded->stages().queue_ns(), 11);
    EXPECT_EQ(decoded->stages().compute_ns(), 22);
    EXPECT_EQ(decoded->batch().requests(), 4);
    EXPECT_EQ(decoded->batch().lane(), "cpu:0");
    ASSERT_EQ(decoded->outputs().size(), 3U);
    for (int i = 0; i < 3; ++i) {
      const OutputTensor& got = decoded->outputs()[static_cast<std::size_t>(i)];
      const v1::Tensor& want = message.outputs(i);
      EXPECT_EQ(got.name(), want.name());
      EXPECT_EQ(static_cast<int>(got.dtype()), static_cast<int>(want.dtype()));
      EXPECT_THAT(got.shape().dims(), ElementsAreArray(want.shape()));
      EXPECT_EQ(DataOf(got), want.data());
    }
    EXPECT_EQ(decoded->size_bytes(), 58U);
  }
}

TEST(DecodeResponseTest, ReadsTheOpenInferenceProtocolsWithRawAndTypedContents) {
  inference::ModelInferResponse message;
  message.set_model_name("m");
  message.set_model_version("3");
  for (const char* name : {"y", "z"}) {
    auto& output = *message.add_outputs();
    output.set_name(name);
    output.set_datatype("FP32");
    output.add_shape(2);
  }
  const auto decode = [&](std::size_t size) {
    return NormalizeResponse::Decode(Cut(message.SerializeAsString(), size),
                                     Protocol::kOpenInference);
  };
  const float elements[] = {1.5f, -2.5f};
  const std::string wanted(reinterpret_cast<const char*>(elements), sizeof(elements));
  for (const bool raw : {true, false}) {
    message.clear_raw_output_contents();
    for (auto& output : *message.mutable_outputs()) {
      output.clear_contents();
      if (raw) message.add_raw_output_contents(wanted);
      if (!raw) output.mutable_contents()->mutable_fp32_contents()->Add(elements, elements + 2);
    }
    for (const std::size_t size : {1, 7, 1000}) {
      const auto response = decode(size);
      ASSERT_TRUE(response.ok()) << response.status();
      EXPECT_EQ(response->model(), "m");
      EXPECT_EQ(response->version(), 3);
      ASSERT_EQ(response->outputs().size(), 2u);
      EXPECT_EQ(response->outputs()[1].name(), "z");
      EXPECT_EQ(response->outputs()[1].dtype(), norm::DType::kFloat32);
      EXPECT_EQ(DataOf(response->outputs()[0]), wanted);
      EXPECT_EQ(DataOf(response->outputs()[1]), wanted);
    }
  }
  message.set_model_version("three");
  EXPECT_THAT(std::string(decode(9).status().message()), HasSubstr("model_version: \"three\""));
  message.mutable_outputs(1)->set_datatype("INT16");
  EXPECT_THAT(std::string(decode(9).status().message()),
              HasSubstr("outputs[1].datatype: unknown value INT16"));
  message.mutable_outputs(0)->set_shape(0, 3);
  EXPECT_THAT(std::string(decode(9).status().message()), HasSubstr("8 bytes of data for float32"));
  message.Clear();
  EXPECT_THAT(std::string(decode(9).status().message()), HasSubstr("0 outputs"));
}

TEST(DecodeResponseTest, PiecesSurviveAMove) {
  auto decoded = NormalizeResponse::Decode(Cut(GoodResponse().SerializeAsString(), 5));
  ASSERT_TRUE(decoded.ok());
  const NormalizeResponse moved = *std::move(decoded);
  const Tensor tensor = moved.outputs()[0].ToTensor().value();
  EXPECT_EQ(std::memcmp(tensor.bytes().data(), GoodResponse().outputs(0).data().data(), 42), 0);
}

TEST(DecodeResponseTest, SkipsFieldsThatItDoesNotKnow) {
  // Field 100, a string; field 101, a varint; then the message.
  const std::string unknown("\xa2\x06\x02hi\xa8\x06\x05", 8);
  EXPECT_TRUE(NormalizeResponse::Decode(Cut(unknown + GoodResponse().SerializeAsString(), 7)).ok());
}

TEST(DecodeResponseTest, RefusesOutputsThatContradictThemselves) {
  const auto error = [](const std::function<void(v1::NormalizeResponse&)>& change) {
    v1::NormalizeResponse message = GoodResponse();
    change(message);
    const absl::Status status =
        NormalizeResponse::Decode(Cut(message.SerializeAsString(), 1000)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    return std::string(status.message());
  };
  EXPECT_THAT(error([](auto& r) { r.clear_outputs(); }), HasSubstr("0 outputs, wanted 1"));
  const auto add_copy = [](auto& r) { r.add_outputs()->CopyFrom(GoodResponse().outputs(0)); };
  EXPECT_THAT(error(add_copy), HasSubstr("2 outputs, wanted 1"));
  EXPECT_THAT(error([&](auto& r) {
                add_copy(r);
                for (v1::Tensor& output : *r.mutable_outputs()) output.set_name("y");
              }),
              HasSubstr("2 outputs, wanted 1 named \"y\""));
  EXPECT_THAT(error([](auto& r) { r.mutable_outputs(0)->mutable_data()->push_back('x'); }),
              HasSubstr("43 bytes of data for float16 [3, 7]"));
  EXPECT_THAT(error([](auto& r) { r.mutable_outputs(0)->clear_dtype(); }),
              HasSubstr("dtype: unknown value 0"));
  EXPECT_THAT(error([](auto& r) { r.mutable_outputs(0)->set_shape(0, -3); }),
              HasSubstr("wanted 0 or more"));
  EXPECT_THAT(error([](auto& r) {
                for (int i = 0; i < 1000; ++i) r.mutable_outputs(0)->add_shape(1);
              }),
              HasSubstr("not a NormalizeResponse"));
}

TEST(DecodeResponseTest, SurvivesEveryTruncationAndEveryChangedByte) {
  const std::string good = GoodResponse().SerializeAsString();
  for (std::size_t i = 0; i < good.size(); ++i) {
    EXPECT_FALSE(NormalizeResponse::Decode(Cut(good.substr(0, i), 9)).ok()) << i;
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = good;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      const auto decoded = NormalizeResponse::Decode(Cut(changed, 9));
      if (decoded.ok()) {
        for (const OutputTensor& output : decoded->outputs()) {
          EXPECT_EQ(static_cast<std::int64_t>(output.size_bytes()),
                    TensorBytes(output.dtype(), output.shape()).value());
          EXPECT_TRUE(output.ToTensor().ok());
        }
      }
    }
  }
}

}  // namespace
}  // namespace normd::client
