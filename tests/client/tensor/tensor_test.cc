#include "client/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace normd::client {
namespace {

TEST(ParseDTypeTest, KnowsLongAndShortNames) {
  EXPECT_EQ(ParseDType("float32").value(), norm::DType::kFloat32);
  EXPECT_EQ(ParseDType("f64").value(), norm::DType::kFloat64);
  EXPECT_EQ(ParseDType("f16").value(), norm::DType::kFloat16);
  EXPECT_EQ(ParseDType("bfloat16").value(), norm::DType::kBFloat16);
  for (const char* name : {"", "int8", "Float32", "float"}) EXPECT_FALSE(ParseDType(name).ok());
}

TEST(ParseShapeTest, TakesBothSeparators) {
  EXPECT_EQ(ParseShape("2x64x512x512")->ToString(), "[2, 64, 512, 512]");
  EXPECT_EQ(ParseShape("2,64")->ToString(), "[2, 64]");
  EXPECT_EQ(ParseShape("7")->ToString(), "[7]");
  EXPECT_EQ(ParseShape("0x3")->ToString(), "[0, 3]");
  for (const char* text :
       {"", "x", "1xx2", "1x-2", "a", "1.5", "99999999999999999999", "4611686018427387904x4"}) {
    EXPECT_FALSE(ParseShape(text).ok()) << text;
  }
}

TEST(TensorTest, IsAlignedAndSharedByItsOwners) {
  Tensor tensor = Tensor::Allocate(norm::DType::kFloat16, Shape::Create({3, 5}).value()).value();
  EXPECT_EQ(tensor.bytes().size(), 30u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.bytes().data()) % 64, 0u);
  const std::shared_ptr<const void> owner = tensor.owner();
  const absl::Span<const std::byte> bytes = tensor.bytes();
  tensor.mutable_bytes()[29] = std::byte{7};
  tensor = Tensor();
  EXPECT_EQ(bytes[29], std::byte{7});
}

TEST(TensorTest, RefusesMoreThanThereIs) {
  const auto allocate = [](std::int64_t dim) {
    return Tensor::Allocate(norm::DType::kFloat64, Shape::Create({dim}).value()).status().code();
  };
  EXPECT_EQ(allocate(std::int64_t{1} << 61), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(allocate(std::int64_t{1} << 58), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace normd::client
