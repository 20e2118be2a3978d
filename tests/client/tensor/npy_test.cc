#include "client/tensor/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "client/tensor/random.h"
#include "tests/support/temp_repository.h"

namespace normd::client {
namespace {

using ::testing::HasSubstr;

class NpyTest : public ::testing::Test {
 protected:
  Tensor Random(norm::DType dtype, std::vector<std::int64_t> dims) {
    return RandomTensor(dtype, Shape::Create(dims).value(), -1, 1, 1).value();
  }
  const test::TempFolder folder_;
};

TEST_F(NpyTest, RoundTripsEveryType) {
  for (const norm::DType dtype : {norm::DType::kFloat32, norm::DType::kFloat64,
                                  norm::DType::kFloat16, norm::DType::kBFloat16}) {
    const Tensor written = Random(dtype, {3, 5, 7});
    const std::string path = folder_.File("x.npy");
    ASSERT_TRUE(WriteNpy(path, written.view()).ok());
    const auto read = ReadNpy(path);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->dtype(), dtype);
    EXPECT_EQ(read->shape(), written.shape());
    EXPECT_EQ(read->bytes(), written.bytes());
  }
}

TEST_F(NpyTest, RoundTripsAnEmptyTensor) {
  const std::string path = folder_.File("x.npy");
  ASSERT_TRUE(WriteNpy(path, Random(norm::DType::kFloat32, {0, 64, 8}).view()).ok());
  const auto read = ReadNpy(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->shape().ToString(), "[0, 64, 8]");
}

TEST_F(NpyTest, ReadsAndWritesInParts) {
  const Tensor whole = Random(norm::DType::kFloat32, {4, 8});
  const std::string path = folder_.File("x.npy");
  auto writer = NpyWriter::Create(path, whole.dtype(), whole.shape());
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(writer->WriteAt(64, whole.bytes().subspan(64)).ok());
  ASSERT_TRUE(writer->WriteAt(0, whole.bytes().first(64)).ok());
  ASSERT_TRUE(writer->Close().ok());
  const auto reader = NpyReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->bytes(), 128);
  std::vector<std::byte> part(40);
  ASSERT_TRUE(reader->ReadAt(50, absl::MakeSpan(part)).ok());
  EXPECT_EQ(absl::MakeConstSpan(part), whole.bytes().subspan(50, 40));
}

// Every element is at the place, and has the bytes, that the header's orders say.
TEST_F(NpyTest, ReadsEveryOrderOfBytesAndElements) {
  const std::string path = folder_.File("x.npy");
  for (const norm::DType dtype :
       {norm::DType::kFloat32, norm::DType::kFloat64, norm::DType::kFloat16, norm::DType::kInt64}) {
    const std::size_t size = norm::SizeOf(dtype);
    for (const std::vector<std::int64_t>& dims : std::vector<std::vector<std::int64_t>>{
             {}, {7}, {3, 5}, {1, 4, 1}, {2, 3, 4, 5}, {0, 3}, {700, 1001}}) {
      const Shape shape = Shape::Create(dims).value();
      Tensor wanted = Tensor::Allocate(dtype, shape).value();
      for (std::size_t i = 0; i < wanted.bytes().size(); ++i) {
        wanted.mutable_bytes()[i] = static_cast<std::byte>(i * 2654435761U >> 24);
      }
      for (const auto& [fortran, big] : {std::pair(false, true), {true, false}, {true, true}}) {
        std::string header = MakeNpyHeader(dtype, shape);
        if (big) header[header.find('<')] = '>';
        if (fortran) header.replace(header.find("False"), 5, "True ");
        std::string elements(wanted.bytes().size(), '\0');
        for (std::int64_t i = 0; i < shape.elements(); ++i) {
          std::int64_t rest = i;
          std::int64_t place = 0;  // In Fortran order, by the last dimension's index first.
          for (std::size_t d = dims.size(); d-- > 0; rest /= dims[d]) {
            place = place * dims[d] + rest % dims[d];
          }
          const auto from = static_cast<std::size_t>(i) * size;
          const auto to = static_cast<std::size_t>(fortran ? place : i) * size;
          for (std::size_t b = 0; b < size; ++b) {
            elements[to + b] = static_cast<char>(wanted.bytes()[from + (big ? size - 1 - b : b)]);
          }
        }
        test::WriteFile(path, header + elements);
        const auto reader = NpyReader::Open(path);
        ASSERT_TRUE(reader.ok()) << reader.status();
        EXPECT_EQ(reader->ReadAll()->bytes(), wanted.bytes()) << shape.ToString();
        for (std::size_t begin = 0; begin < std::min<std::size_t>(elements.size(), 20); ++begin) {
          for (std::size_t bytes = 0; bytes <= std::min<std::size_t>(elements.size() - begin, 20);
               ++bytes) {
            std::vector<std::byte> part(bytes);
            ASSERT_TRUE(
                reader->ReadAt(static_cast<std::int64_t>(begin), absl::MakeSpan(part)).ok());
            EXPECT_EQ(absl::MakeConstSpan(part), wanted.bytes().subspan(begin, bytes));
          }
        }
      }
    }
  }
}

TEST_F(NpyTest, OverwritesALongerFile) {
  const std::string path = folder_.File("x.npy");
  ASSERT_TRUE(WriteNpy(path, Random(norm::DType::kFloat32, {1000}).view()).ok());
  ASSERT_TRUE(WriteNpy(path, Random(norm::DType::kFloat32, {10}).view()).ok());
  EXPECT_EQ(ReadNpy(path)->shape().ToString(), "[10]");
}

TEST_F(NpyTest, RefusesAFileOfTheWrongSize) {
  const std::string path = folder_.File("x.npy");
  ASSERT_TRUE(WriteNpy(path, Random(norm::DType::kFloat32, {10}).view()).ok());
  const std::string bytes = test::ReadFile(path);
  for (const std::string& changed : {bytes.substr(0, bytes.size() - 1), bytes + "x"}) {
    test::WriteFile(path, changed);
    const auto read = ReadNpy(path);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(read.status().message()),
                HasSubstr("bytes of elements, wanted 40 for float32 [10]"));
  }
}

TEST_F(NpyTest, DoesNotAllocateWhatAHeaderClaims) {
  const std::string path = folder_.File("x.npy");
  test::WriteFile(
      path, MakeNpyHeader(norm::DType::kFloat64, Shape::Create({std::int64_t{1} << 50}).value()));
  EXPECT_EQ(ReadNpy(path).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(NpyTest, NamesThePathOfAFileThatDoesNotOpen) {
  const std::string path = folder_.File("missing.npy");
  const auto read = ReadNpy(path);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr(path));
  EXPECT_EQ(ReadNpy(folder_.path()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(
      WriteNpy(folder_.File("no/such/folder.npy"), Random(norm::DType::kFloat32, {1}).view()).ok());
}

TEST_F(NpyTest, SaysWhenAFileShrinksWhileItIsRead) {
  const std::string path = folder_.File("x.npy");
  ASSERT_TRUE(WriteNpy(path, Random(norm::DType::kFloat32, {100}).view()).ok());
  const auto reader = NpyReader::Open(path);
  ASSERT_TRUE(reader.ok());
  std::filesystem::resize_file(path, 200);
  std::vector<std::byte> all(400);
  EXPECT_EQ(reader->ReadAt(0, absl::MakeSpan(all)).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace normd::client
