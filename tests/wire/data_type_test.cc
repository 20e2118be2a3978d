#include "wire/data_type.h"

#include <gtest/gtest.h>

#include <set>

#include "normd/v1/model_config.pb.h"
#include "wire/tensor_message.h"

namespace normd {
namespace {

TEST(DataTypesTest, EveryTypeOfTheProtocolAndOfTheKernelsHasItsLine) {
  std::set<int> numbers;
  for (const DataTypeNames& type : kDataTypes) {
    EXPECT_EQ(type.name, norm::Name(type.dtype));
    EXPECT_GT(norm::SizeOf(type.dtype), 0U);
    EXPECT_EQ(&NamesOf(type.dtype), &type);
    EXPECT_EQ(static_cast<int>(ToProtocol(type.dtype)), type.protocol);
    numbers.insert(type.protocol);
  }
  for (int number = v1::DataType_MIN; number <= v1::DataType_MAX; ++number) {
    const bool is_type = v1::DataType_IsValid(number) && number != v1::DATA_TYPE_UNSPECIFIED;
    EXPECT_EQ(numbers.count(number) == 1, is_type) << number;
  }
  // Every value of the byte that a DType is.
  for (int value = 0; value < 256; ++value) {
    const auto dtype = static_cast<norm::DType>(value);
    EXPECT_EQ(FindDataType(&DataTypeNames::dtype, dtype) != nullptr, norm::SizeOf(dtype) > 0);
  }
}

TEST(DataTypesTest, EachColumnFindsItsOwnLineAndNothingElse) {
  for (const auto column :
       {&DataTypeNames::name, &DataTypeNames::short_name, &DataTypeNames::inference,
        &DataTypeNames::npy, &DataTypeNames::safetensors}) {
    for (const DataTypeNames& type : kDataTypes) {
      EXPECT_EQ(FindDataType(column, type.*column), &type) << type.name;
    }
    for (const char* unknown : {"", " ", "f", "int16", "FLOAT32", "float32 ", "<f16"}) {
      EXPECT_EQ(FindDataType(column, unknown), nullptr) << unknown;
    }
  }
  EXPECT_EQ(FindDataType(&DataTypeNames::protocol, 0), nullptr);
  EXPECT_EQ(FindDataType(&DataTypeNames::protocol, -1), nullptr);
}

TEST(DataTypesTest, ListsAColumnForErrors) {
  EXPECT_EQ(ListDataTypes(&DataTypeNames::name), "float32, float64, float16, bfloat16");
}

}  // namespace
}  // namespace normd
