#include "client/tensor/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "client/tensor/npy_header.h"
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

// A file's beginning with this dictionary, in format version `major`.0.
std::string File(const std::string& dictionary, char major = 1) {
  std::string file = "\x93NUMPY";
  file.push_back(major);
  file.push_back('\0');
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) {
    file.push_back(static_cast<char>((dictionary.size() >> (8 * i)) & 0xff));
  }
  return file + dictionary;
}

std::string Dictionary(const std::string& descr, const std::string& order,
                       const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

std::vector<std::int64_t> Dims(const NpyHeader& header) {
  return {header.shape.dims().begin(), header.shape.dims().end()};
}

TEST(NpyHeaderTest, ReadsEveryVersion) {
  for (const char major : {'\x01', '\x02', '\x03'}) {
    const std::string file = File(Dictionary("'<f4'", "False", "(2, 3)"), major);
    const auto header = ParseNpyHeader(file + "elements");
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->dtype, norm::DType::kFloat32);
    EXPECT_EQ(Dims(*header), (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(header->data_offset, static_cast<std::int64_t>(file.size()));
  }
}

TEST(NpyHeaderTest, ReadsEveryType) {
  const std::pair<const char*, norm::DType> types[] = {
      {"'<f4'", norm::DType::kFloat32},     {"\"<f8\"", norm::DType::kFloat64},
      {"'<f2'", norm::DType::kFloat16},     {"'<V2'", norm::DType::kBFloat16},
      {"'|V2'", norm::DType::kBFloat16},    {"'bfloat16'", norm::DType::kBFloat16},
      {"'|i1'", norm::DType::kInt8},        {"'<i8'", norm::DType::kInt64},
      {"'<V1'", norm::DType::kFloat8E4M3},  {"'|V1'", norm::DType::kFloat8E4M3},
      {"'=f4'", norm::DType::kFloat32},     {"'|f4'", norm::DType::kFloat32},
      {"'f4'", norm::DType::kFloat32},      {"'float32'", norm::DType::kFloat32},
      {"'f'", norm::DType::kFloat32},       {"'<d'", norm::DType::kFloat64},
      {"'float16'", norm::DType::kFloat16}, {"'=e'", norm::DType::kFloat16},
      {"u'<f4'", norm::DType::kFloat32},    {"'>i1'", norm::DType::kInt8},
      {"'=i8'", norm::DType::kInt64},       {"'=V2'", norm::DType::kBFloat16},
  };
  for (const auto& [descr, dtype] : types) {
    const auto header = ParseNpyHeader(File(Dictionary(descr, "False", "(1,)")));
    ASSERT_TRUE(header.ok()) << descr << ": " << header.status();
    EXPECT_EQ(header->dtype, dtype);
    EXPECT_FALSE(header->big_endian || header->fortran_order) << descr;
  }
}

TEST(NpyHeaderTest, ReadsOtherOrdersOfBytesAndElements) {
  const auto header = ParseNpyHeader(File(Dictionary("'>f8'", "True", "(2, 3)")));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->dtype, norm::DType::kFloat64);
  EXPECT_TRUE(header->big_endian && header->fortran_order);
}

TEST(NpyHeaderTest, ReadsPython2) {
  const auto header =
      ParseNpyHeader(File("{u'descr': u'<f4', 'fortran_order': False, 'shape': (6L, 8L), }\n"));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(Dims(*header), (std::vector<std::int64_t>{6, 8}));
}

TEST(NpyHeaderTest, ReadsEntriesInAnyOrderAndSpacing) {
  const auto header =
      ParseNpyHeader(File("{ \"shape\" :( 4 ,5,6) ,'fortran_order':False,\n 'descr':'<f8'}   \n"));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(Dims(*header), (std::vector<std::int64_t>{4, 5, 6}));
}

TEST(NpyHeaderTest, ReadsScalarsAndEmptyTensors) {
  EXPECT_EQ(ParseNpyHeader(File(Dictionary("'<f4'", "False", "()")))->shape.rank(), 0);
  EXPECT_EQ(ParseNpyHeader(File(Dictionary("'<f4'", "False", "(0, 64)")))->shape.elements(), 0);
}

TEST(NpyHeaderTest, RoundTripsWhatItWrites) {
  for (const norm::DType dtype : {norm::DType::kFloat32, norm::DType::kFloat64,
                                  norm::DType::kFloat16, norm::DType::kBFloat16}) {
    for (const std::vector<std::int64_t>& dims : {std::vector<std::int64_t>{},
                                                  {7},
                                                  {0, 3},
                                                  {112, 64, 512, 512},
                                                  std::vector<std::int64_t>(16, 1)}) {
      const std::string bytes = MakeNpyHeader(dtype, Shape::Create(dims).value());
      EXPECT_EQ(bytes.size() % 64, 0u);
      EXPECT_EQ(bytes.back(), '\n');
      const auto header = ParseNpyHeader(bytes);
      ASSERT_TRUE(header.ok()) << header.status();
      EXPECT_EQ(header->dtype, dtype);
      EXPECT_EQ(Dims(*header), dims);
      EXPECT_EQ(header->data_offset, static_cast<std::int64_t>(bytes.size()));
    }
  }
}

// What numpy.save writes for numpy.zeros((2, 3), numpy.float32).
TEST(NpyHeaderTest, WritesWhatNumPyWrites) {
  std::string expected("\x93NUMPY\x01\x00\x76\x00", 10);
  expected += "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  expected.append(127 - expected.size(), ' ');
  expected += '\n';
  EXPECT_EQ(MakeNpyHeader(norm::DType::kFloat32, Shape::Create({2, 3}).value()), expected);
}

struct HostileCase {
  const char* name;
  std::string file;
  const char* message;
};

class HostileNpyHeaderTest : public ::testing::TestWithParam<HostileCase> {};

TEST_P(HostileNpyHeaderTest, IsRefusedWithItsReason) {
  const auto header = ParseNpyHeader(GetParam().file);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(header.status().message()), HasSubstr(GetParam().message));
}

const char kGood[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";

INSTANTIATE_TEST_SUITE_P(
    Files, HostileNpyHeaderTest,
    ::testing::Values(
        HostileCase{"Empty", "", "begin with"}, HostileCase{"Text", "P5 640 480 255 ....", "begin"},
        HostileCase{"MagicOnly", "\x93NUMPY", "ends before the format's version"},
        HostileCase{"NoLength", std::string("\x93NUMPY\x01\x00\x10", 9), "header's length"},
        HostileCase{"Version0", File(kGood, 0), "version 0.0"},
        HostileCase{"Version4", File(kGood, 4), "version 4.0"},
        HostileCase{"LengthBeyondFile", File(kGood).substr(0, 40), "exceeds the"},
        HostileCase{"LengthOf4GiB", std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff{}", 14),
                    "exceeds 65536"},
        HostileCase{"EmptyHeader", File(""), "no dictionary"},
        HostileCase{"List", File("['<f4']"), "no dictionary"},
        HostileCase{"Unclosed", File("{'descr': '<f4'"), "comma was wanted"},
        HostileCase{"UnclosedString", File("{'descr': '<f4"), "descr"},
        HostileCase{"NoColon", File("{'descr' '<f4'}"), "key was wanted"},
        HostileCase{"NumberKey", File("{1: 2}"), "key was wanted"},
        HostileCase{"UnknownKey", File("{'descr': '<f4', 'colour': 'red'}"),
                    "unknown key 'colour'"},
        HostileCase{"NoDescr", File("{'fortran_order': False, 'shape': (2,)}"), "descr is missing"},
        HostileCase{"NoOrder", File("{'descr': '<f4', 'shape': (2,)}"), "fortran_order is missing"},
        HostileCase{"NoShape", File("{'descr': '<f4', 'fortran_order': False}"),
                    "shape is missing"},
        HostileCase{"DescrTwice", File("{'descr': '<f4', 'descr': '<f8'}"), "descr is there twice"},
        HostileCase{"ShapeTwice", File("{'shape': (1,), 'shape': (2,)}"), "shape is there twice"},
        HostileCase{"OrderTwice", File("{'fortran_order': False, 'fortran_order': True}"),
                    "fortran_order is there twice"},
        HostileCase{"Trailing", File(std::string(kGood) + "evil"), "after the dictionary"},
        HostileCase{"BigEndianRawBytes", File(Dictionary("'>V2'", "False", "(2,)")),
                    "'>V2', wanted"},
        HostileCase{"Integers", File(Dictionary("'<i4'", "False", "(2,)")),
                    "numpy.save(path, numpy.load(path).astype(\"float32\"))"},
        HostileCase{"Objects", File(Dictionary("'|O'", "False", "(2,)")), "allow_pickle=True"},
        HostileCase{"Structured", File(Dictionary("[('a', '<f4')]", "False", "(2,)")),
                    "numpy.load(path)[\"FIELD\"]"},
        HostileCase{"TwoLs", File(Dictionary("'<f4'", "False", "(2LL,)")), "tuple"},
        HostileCase{"LongDescr",
                    File(Dictionary("'" + std::string(5000, 'A') + "'", "False", "()")), "AAA...'"},
        HostileCase{"BinaryDescr", File(Dictionary("'\x01\xff'", "False", "()")), "\\x01"},
        HostileCase{"OrderIsNumber", File(Dictionary("'<f4'", "0", "(2,)")), "True or False"},
        HostileCase{"NegativeDim", File(Dictionary("'<f4'", "False", "(2, -1)")),
                    "wanted 0 or more"},
        HostileCase{"HugeDim", File(Dictionary("'<f4'", "False", "(99999999999999999999,)")),
                    "below 2^63"},
        HostileCase{"HugeProduct", File(Dictionary("'<f4'", "False", "(4611686018427387904, 4)")),
                    "2^63"},
        HostileCase{"ZeroHidesOverflow",
                    File(Dictionary("'<f4'", "False", "(0, 4611686018427387904, 4)")), "2^63"},
        HostileCase{"ManyDims",
                    File(
                        Dictionary(
                            "'<f4'", "False",
                            "(" +
                                [] {
                                  std::string ones;
                                  for (int i = 0; i < 5000; ++i) ones += "1,";
                                  return ones;
                                }() +
                                ")")),
                    "at most 16"},
        HostileCase{"FloatDim", File(Dictionary("'<f4'", "False", "(2.5,)")), "tuple"},
        HostileCase{"StringDim", File(Dictionary("'<f4'", "False", "('2',)")), "tuple"},
        HostileCase{"ListShape", File(Dictionary("'<f4'", "False", "[2]")), "tuple"},
        HostileCase{"NoCommaInShape", File(Dictionary("'<f4'", "False", "(2 3)")), "tuple"},
        HostileCase{"OnlyComma", File(Dictionary("'<f4'", "False", "(,)")), "tuple"},
        HostileCase{"Expression", File(Dictionary("'<f4'", "False", "(1+1,)")), "tuple"},
        HostileCase{"Nulls", File(std::string(100, '\0')), "no dictionary"}),
    [](const auto& tested) { return tested.param.name; });

TEST(NpyHeaderTest, SurvivesEveryTruncationAndEveryChangedByte) {
  const std::string good = MakeNpyHeader(norm::DType::kFloat32, Shape::Create({2, 3}).value());
  for (std::size_t i = 0; i < good.size(); ++i) {
    EXPECT_FALSE(ParseNpyHeader(good.substr(0, i)).ok()) << i;
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = good;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      const auto header = ParseNpyHeader(changed);
      // What is still accepted is at least consistent.
      if (header.ok()) {
        EXPECT_LE(header->data_offset, static_cast<std::int64_t>(good.size()));
      }
    }
  }
}

}  // namespace
}  // namespace normd::client
