#include "client/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/tensor/random.h"

namespace normd::client {
namespace {

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

TEST(EncodeRequestTest, IsTheMessageThatProtobufReads) {
  for (const norm::DType dtype : {norm::DType::kFloat32, norm::DType::kFloat64,
                                  norm::DType::kFloat16, norm::DType::kBFloat16}) {
    const Tensor tensor = RandomTensor(dtype, Shape::Create({2, 300, 1}).value(), 0, 1, 1).value();
    const auto buffer =
        EncodeRequest({"some_model", 7, v1::PRIORITY_LOW, 12345, v1::PRECISION_TF32},
                      {{"", tensor.view(), tensor.owner()}});
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    v1::NormalizeRequest message;
    ASSERT_TRUE(message.ParseFromString(Flatten(*buffer)));
    EXPECT_EQ(message.model(), "some_model");
    EXPECT_EQ(message.version(), 7);
    EXPECT_EQ(message.priority(), v1::PRIORITY_LOW);
    EXPECT_EQ(message.queue_timeout_ns(), 12345);
    EXPECT_EQ(message.precision(), v1::PRECISION_TF32);
    ASSERT_EQ(message.inputs_size(), 1);
    EXPECT_EQ(static_cast<int>(message.inputs(0).dtype()), static_cast<int>(dtype));
    EXPECT_THAT(message.inputs(0).shape(), ::testing::ElementsAre(2, 300, 1));
    EXPECT_EQ(
        std::memcmp(message.inputs(0).data().data(), tensor.bytes().data(), tensor.bytes().size()),
        0);
    EXPECT_EQ(message.inputs(0).data().size(), tensor.bytes().size());
  }
}

TEST(EncodeRequestTest, RefersToTheTensorAndHoldsItsOwner) {
  auto memory = std::make_shared<std::vector<std::byte>>(1 << 16);
  const std::weak_ptr<const void> watch = memory;
  const TensorView view{norm::DType::kFloat32, Shape::Create({1 << 14}).value(), *memory};
  {
    const auto buffer = EncodeRequest({"m"}, {{"", view, std::exchange(memory, nullptr)}});
    ASSERT_TRUE(buffer.ok());
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(buffer->Dump(&slices).ok());
    EXPECT_EQ(slices.back().begin(), reinterpret_cast<const std::uint8_t*>(view.bytes.data()));
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

TEST(EncodeRequestTest, EncodesTwoNamedInputs) {
  const Tensor x =
      RandomTensor(norm::DType::kFloat32, Shape::Create({2, 3}).value(), 0, 1, 1).value();
  const Tensor y =
      RandomTensor(norm::DType::kFloat32, Shape::Create({2, 500}).value(), 0, 1, 2).value();
  const auto buffer =
      EncodeRequest({"m"}, {{"x", x.view(), x.owner()}, {"y", y.view(), y.owner()}});
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  v1::NormalizeRequest message;
  ASSERT_TRUE(message.ParseFromString(Flatten(*buffer)));
  ASSERT_EQ(message.inputs_size(), 2);
  EXPECT_EQ(message.inputs(0).name(), "x");
  EXPECT_EQ(message.inputs(1).name(), "y");
  EXPECT_THAT(message.inputs(1).shape(), ::testing::ElementsAre(2, 500));
  ASSERT_EQ(message.inputs(1).data().size(), y.bytes().size());
  EXPECT_EQ(std::memcmp(message.inputs(1).data().data(), y.bytes().data(), y.bytes().size()), 0);
}

TEST(EncodeRequestTest, EncodesAnEmptyTensor) {
  const TensorView empty{norm::DType::kFloat32, Shape::Create({0, 8}).value(), {}};
  v1::NormalizeRequest message;
  ASSERT_TRUE(message.ParseFromString(Flatten(*EncodeRequest({"m"}, {{"", empty, nullptr}}))));
  EXPECT_THAT(message.inputs(0).shape(), ::testing::ElementsAre(0, 8));
  EXPECT_TRUE(message.inputs(0).data().empty());
}

TEST(EncodeRequestTest, RefusesMoreThanAMessageCarries) {
  // Nothing reads the bytes of a request that is refused.
  const std::byte one{};
  const TensorView huge{norm::DType::kFloat32, Shape::Create({std::int64_t{1} << 29}).value(),
                        absl::MakeConstSpan(&one, std::size_t{1} << 31)};
  const auto buffer = EncodeRequest({"m"}, {{"", huge, nullptr}});
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(buffer.status().message()), HasSubstr("2147483648 bytes"));
}

TEST(DecodeResponseTest, ReadsAnySplitWithoutACopy) {
  const v1::NormalizeResponse message = GoodResponse();
  const std::string bytes = message.SerializeAsString();
  for (std::size_t size = 1; size <= bytes.size(); ++size) {
    const auto decoded = NormalizeResponse::Decode(Cut(bytes, size));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->model(), "m");
    EXPECT_EQ(decoded->version(), 3);
    EXPECT_EQ(decoded->stages().queue_ns(), 11);
    EXPECT_EQ(decoded->stages().compute_ns(), 22);
    EXPECT_EQ(decoded->batch().requests(), 4);
    EXPECT_EQ(decoded->batch().lane(), "cpu:0");
    EXPECT_EQ(decoded->dtype(), norm::DType::kFloat16);
    EXPECT_EQ(decoded->shape().ToString(), "[3, 7]");
    std::string data(decoded->size_bytes(), '\0');
    decoded->CopyTo(absl::MakeSpan(reinterpret_cast<std::byte*>(data.data()), data.size()));
    EXPECT_EQ(data, message.outputs(0).data()) << size;
  }
}

TEST(DecodeResponseTest, PiecesSurviveAMove) {
  auto decoded = NormalizeResponse::Decode(Cut(GoodResponse().SerializeAsString(), 5));
  ASSERT_TRUE(decoded.ok());
  const NormalizeResponse moved = *std::move(decoded);
  const Tensor tensor = moved.ToTensor().value();
  EXPECT_EQ(std::memcmp(tensor.bytes().data(), GoodResponse().outputs(0).data().data(), 42), 0);
}

TEST(DecodeResponseTest, SkipsFieldsThatItDoesNotKnow) {
  // Field 100, a string; field 101, a varint; then the message.
  const std::string unknown("\xa2\x06\x02hi\xa8\x06\x05", 8);
  EXPECT_TRUE(NormalizeResponse::Decode(Cut(unknown + GoodResponse().SerializeAsString(), 7)).ok());
}

TEST(DecodeResponseTest, RefusesOutputsThatContradictThemselves) {
  const auto error = [](const v1::NormalizeResponse& message) {
    const absl::Status status =
        NormalizeResponse::Decode(Cut(message.SerializeAsString(), 1000)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    return std::string(status.message());
  };
  v1::NormalizeResponse none = GoodResponse();
  none.clear_outputs();
  EXPECT_THAT(error(none), HasSubstr("0 outputs, wanted 1"));
  v1::NormalizeResponse two = GoodResponse();
  *two.add_outputs() = two.outputs(0);
  EXPECT_THAT(error(two), HasSubstr("2 outputs, wanted 1"));
  v1::NormalizeResponse longer = GoodResponse();
  longer.mutable_outputs(0)->mutable_data()->push_back('x');
  EXPECT_THAT(error(longer), HasSubstr("43 bytes of data for float16 [3, 7]"));
  v1::NormalizeResponse untyped = GoodResponse();
  untyped.mutable_outputs(0)->clear_dtype();
  EXPECT_THAT(error(untyped), HasSubstr("dtype: unknown value 0"));
  v1::NormalizeResponse negative = GoodResponse();
  negative.mutable_outputs(0)->set_shape(0, -3);
  EXPECT_THAT(error(negative), HasSubstr("negative"));
  v1::NormalizeResponse deep = GoodResponse();
  for (int i = 0; i < 1000; ++i) deep.mutable_outputs(0)->add_shape(1);
  EXPECT_THAT(error(deep), HasSubstr("not a NormalizeResponse"));
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
        EXPECT_EQ(static_cast<std::int64_t>(decoded->size_bytes()),
                  TensorBytes(decoded->dtype(), decoded->shape()).value());
        EXPECT_TRUE(decoded->ToTensor().ok());
      }
    }
  }
}

}  // namespace
}  // namespace normd::client
