#include "client/verify/parameter_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "client/tensor/random.h"
#include "tests/support/temp_repository.h"

namespace normd::client {
namespace {

using ::testing::HasSubstr;

// A file with this header and data.
std::string Bytes(const std::string& header, const std::string& data = "") {
  const std::uint64_t size = header.size();
  std::string bytes(sizeof(size), '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  return bytes + header + data;
}

class ParameterFileTest : public ::testing::Test {
 protected:
  std::string Error(const std::string& bytes) {
    test::WriteFile(path_, bytes);
    return std::string(ReadParameterFile(path_).status().message());
  }
  const test::TempFolder folder_;
  const std::string path_ = folder_.File("params.safetensors");
};

TEST_F(ParameterFileTest, ReadsTensorsOfEveryType) {
  std::map<std::string, Tensor> written;
  std::uint64_t seed = 0;
  for (const norm::DType dtype : {norm::DType::kFloat32, norm::DType::kFloat64,
                                  norm::DType::kFloat16, norm::DType::kBFloat16}) {
    written[norm::Name(dtype)] =
        RandomTensor(dtype, Shape::Create({2, 5}).value(), 0, 1, ++seed).value();
  }
  test::WriteFile(path_, test::SafetensorsBytes(written));
  const auto read = ReadParameterFile(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), written.size());
  for (const auto& [name, tensor] : written) {
    EXPECT_EQ(read->at(name).dtype(), tensor.dtype());
    EXPECT_EQ(read->at(name).shape(), tensor.shape());
    EXPECT_EQ(read->at(name).bytes(), tensor.bytes());
  }
}

TEST_F(ParameterFileTest, LeavesOutOtherTypesAndMetadata) {
  test::WriteFile(path_, Bytes(R"({"__metadata__": {"format": "pt"},
      "num_batches_tracked": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]}})",
                               "12345678"));
  const auto read = ReadParameterFile(path_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->empty());
}

TEST_F(ParameterFileTest, RefusesWhatContradictsItself) {
  EXPECT_THAT(Error(""), HasSubstr("shorter"));
  EXPECT_THAT(Error("1234567"), HasSubstr("shorter"));
  EXPECT_THAT(Error(std::string(8, '\xff')), HasSubstr("shorter"));
  EXPECT_THAT(Error(Bytes("not json")), HasSubstr("JSON object"));
  EXPECT_THAT(Error(Bytes("[]")), HasSubstr("JSON object"));
  EXPECT_THAT(Error(Bytes(R"({"w": 1})")), HasSubstr("w: no dtype"));
  EXPECT_THAT(Error(Bytes(R"({"w": {"dtype": 3}})")), HasSubstr("w: no dtype"));
  EXPECT_THAT(Error(Bytes(R"({"w": {"dtype": "F32"}})")), HasSubstr("shape"));
  const auto with = [&](const std::string& shape, const std::string& offsets) {
    return Error(Bytes(
        R"({"w": {"dtype": "F32", "shape": )" + shape + R"(, "data_offsets": )" + offsets + "}}",
        "12345678"));
  };
  EXPECT_EQ(with("[2]", "[0, 8]"), "");
  EXPECT_THAT(with("[2]", "[0, 4]"), HasSubstr("wanted 8 bytes"));
  EXPECT_THAT(with("[4]", "[0, 16]"), HasSubstr("data_offsets"));
  EXPECT_THAT(with("[2]", "[-8, 0]"), HasSubstr("data_offsets"));
  EXPECT_THAT(with("[2]", "[8, 0]"), HasSubstr("data_offsets"));
  EXPECT_THAT(with("[2]", "[0]"), HasSubstr("pair"));
  EXPECT_THAT(with("[2]", "\"all\""), HasSubstr("pair"));
  EXPECT_THAT(with("[-2]", "[0, 8]"), HasSubstr("wanted 0 or more"));
  EXPECT_THAT(with("[2.5]", "[0, 8]"), HasSubstr("integers"));
  EXPECT_THAT(with("[4611686018427387904]", "[0, 8]"), HasSubstr("2^63 bytes"));
}

TEST_F(ParameterFileTest, NamesAPathThatDoesNotOpen) {
  const auto read = ReadParameterFile(folder_.File("missing"));
  EXPECT_EQ(read.status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace normd::client
