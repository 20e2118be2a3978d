#include "operations/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "operations/safetensors_header.h"
#include "server/model/root_folder.h"
#include "tests/server/model/files.h"
#include "tests/support/tensor.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 30;

class SafetensorsTest : public ::testing::Test {
 protected:
  // Every tensor that can be a parameter.
  absl::StatusOr<std::vector<Parameter>> Read(absl::string_view content) {
    dir_.Write("params.safetensors", content);
    const absl::StatusOr<RootFolder> root = RootFolder::Open(dir_.path());
    if (!root.ok()) return root.status();
    absl::StatusOr<InputFile> file = root->OpenFile("params.safetensors", kMaxBytes);
    if (!file.ok()) return file.status();
    absl::StatusOr<SafetensorsFile> tensors = SafetensorsFile::Open(*file);
    if (!tensors.ok()) return tensors.status();
    std::vector<Parameter> parameters;
    for (const TensorEntry& tensor : tensors->tensors()) {
      if (!ParameterDType(tensor.dtype)) continue;
      absl::StatusOr<Parameter> parameter = tensors->Read(tensor);
      if (!parameter.ok()) return parameter.status();
      parameters.push_back(*std::move(parameter));
    }
    return parameters;
  }
  TempFolder dir_;
};

TEST_F(SafetensorsTest, ReadsTensorsOfEveryFloatType) {
  const std::vector<RawTensor> tensors = {{"a", "F32", {2}, std::string(8, '\1')},
                                          {"b", "F64", {1, 2}, std::string(16, '\2')},
                                          {"c", "F16", {2, 2}, std::string(8, '\3')},
                                          {"d", "BF16", {3}, std::string(6, '\4')}};
  const auto parameters = Read(Safetensors(tensors));
  ASSERT_TRUE(parameters.ok()) << parameters.status();
  ASSERT_EQ(parameters->size(), 4u);
  const norm::DType dtypes[] = {norm::DType::kFloat32, norm::DType::kFloat64, norm::DType::kFloat16,
                                norm::DType::kBFloat16};
  for (std::size_t i = 0; i < 4; ++i) {
    const Parameter& parameter = (*parameters)[i];
    EXPECT_EQ(parameter.name, tensors[i].name);
    EXPECT_EQ(parameter.dtype, dtypes[i]);
    EXPECT_EQ(parameter.shape, *Shape::Create(tensors[i].shape));
    EXPECT_EQ(std::memcmp(parameter.data.get(), tensors[i].data.data(), tensors[i].data.size()), 0);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(parameter.data.get()) % 64, 0u);
  }
}

TEST_F(SafetensorsTest, ReadsWhatTheFormatAllowsBesides) {
  // Metadata, padding with spaces, entries in another order than their data, a scalar, a tensor
  // without elements.
  const auto parameters =
      Read(WithHeader(R"({"__metadata__":{"format":"pt","note":"é"},)"
                      R"("b":{"shape":[],"data_offsets":[4,8],"dtype":"F32"},)"
                      R"("e":{"dtype":"F16","shape":[3,0],"data_offsets":[8,8]},)"
                      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}    )",
                      "aaaabbbb"));
  ASSERT_TRUE(parameters.ok()) << parameters.status();
  ASSERT_EQ(parameters->size(), 3u);
  EXPECT_EQ((*parameters)[0].name, "a");
  EXPECT_EQ((*parameters)[1].name, "b");
  EXPECT_EQ((*parameters)[1].shape.rank(), 0);
  EXPECT_EQ((*parameters)[1].data[0], std::byte{'b'});
  EXPECT_EQ((*parameters)[2].shape.elements(), 0);
  EXPECT_NE((*parameters)[2].data, nullptr);
}

TEST_F(SafetensorsTest, ReadsAFileWithoutTensors) {
  const auto parameters = Read(WithHeader("{}", ""));
  ASSERT_TRUE(parameters.ok()) << parameters.status();
  EXPECT_TRUE(parameters->empty());
}

// What safetensors knows today (0.8), whether or not it can be a parameter.
TEST_F(SafetensorsTest, TakesTensorsOfEveryTypeThatTheFormatHas) {
  const std::pair<const char*, int> bits[] = {
      {"BOOL", 8},        {"U8", 8},         {"I8", 8},      {"F8_E5M2", 8}, {"F8_E4M3", 8},
      {"F8_E8M0", 8},     {"F4", 4},         {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"I16", 16},
      {"U16", 16},        {"F16", 16},       {"BF16", 16},   {"I32", 32},    {"U32", 32},
      {"F32", 32},        {"I64", 64},       {"U64", 64},    {"F64", 64},    {"C64", 64},
      {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};
  for (const auto& [name, width] : bits) {
    const auto with = [name = name](std::int64_t elements, int bytes) {
      return Safetensors(
          {{"other", name, {elements}, std::string(bytes, '\1')}, FloatTensor("weight", {1})});
    };
    const auto parameters = Read(with(8, width));
    ASSERT_TRUE(parameters.ok()) << name << ": " << parameters.status();
    EXPECT_EQ(parameters->back().name, "weight");
    EXPECT_FALSE(Read(with(8, width + 1)).ok()) << name;
    // Less than a whole byte more.
    if (width < 8) {
      EXPECT_FALSE(Read(with(9, width + 1)).ok()) << name;
    }
  }
}

TEST_F(SafetensorsTest, NamesOtherFormats) {
  const auto error = [this](const std::string& content) {
    return std::string(Read(content).status().message());
  };
  const std::string rest(100, 'x');
  EXPECT_THAT(
      error("PK\x03\x04" + rest),
      HasSubstr("params.safetensors: a zip archive, which is what torch.save writes; wanted "
                "safetensors, as safetensors.torch.save_file(module.state_dict(), path)"));
  EXPECT_THAT(error("\x80\x02\x8a\x0a" + rest), HasSubstr("a pickle, as torch.save wrote it"));
  EXPECT_THAT(error("version https://git-lfs.github.com/spec/v1\noid"), HasSubstr("git lfs pull"));
  EXPECT_THAT(error("root:x:0:0:" + rest), HasSubstr("not a safetensors file"));
  EXPECT_THAT(error("root:x:0:0:" + rest), Not(HasSubstr("root")));
}

struct HostileCase {
  const char* name;
  std::string content;
  const char* message;  // Part of the error's.
};
std::string HostileName(const ::testing::TestParamInfo<HostileCase>& info) {
  return info.param.name;
}
void PrintTo(const HostileCase& hostile, std::ostream* out) { *out << hostile.name; }

class HostileSafetensorsTest : public SafetensorsTest,
                               public ::testing::WithParamInterface<HostileCase> {};

TEST_P(HostileSafetensorsTest, FailsWithItsReason) {
  const absl::Status status = Read(GetParam().content).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("params.safetensors: "));
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  EXPECT_LT(message.size(), 400u);
}

std::string Repeat(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

// One tensor "w" with these fields, and four bytes of data.
std::string W(const std::string& fields) { return WithHeader("{\"w\":{" + fields + "}}", "1234"); }
std::string WithShape(const std::string& shape) {
  return W(R"("dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,4])");
}
std::string WithOffsets(const std::string& offsets) {
  return W(R"("dtype":"F32","shape":[1],"data_offsets":)" + offsets);
}

const HostileCase kHostileLengths[] = {
    {"EmptyFile", "", "0 bytes, wanted at least 8"},
    {"CutInTheLength", "1234567", "7 bytes, wanted at least 8"},
    {"HeaderOneByteTooLong", LengthPrefix(3) + "{}", "header length 3, wanted at"},
    {"HeaderOf63Bits", LengthPrefix(std::uint64_t{1} << 63) + "{}", "not a safetensors file"},
    {"HeaderOf64Bits", LengthPrefix(~std::uint64_t{0}) + "{}", "not a safetensors file"},
    {"HeaderOverTheCap", WithHeader(std::string((16 << 20) + 1, ' '), ""),
     "header of at most 16777216 bytes"},
    {"NoHeader", LengthPrefix(0), "does not begin with '{'"},
    {"TruncatedData", WithOffsets("[0,4]").substr(0, 60), "params"},
    {"DataCut", WithHeader(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "1234"),
     "data_offsets end at 8, but the file holds 4"},
    {"TrailingData", WithOffsets("[0,4]") + "x", "but the file holds 5"},
    {"DataWithoutTensors", WithHeader("{}", "x"), "but the file holds 1"}};

INSTANTIATE_TEST_SUITE_P(Length, HostileSafetensorsTest, ::testing::ValuesIn(kHostileLengths),
                         HostileName);

const HostileCase kHostileJson[] = {
    {"Array", WithHeader("[]", ""), "does not begin with '{'"},
    {"LeadingSpace", WithHeader(" {}", ""), "does not begin with '{'"},
    {"ByteOrderMark", WithHeader("\xef\xbb\xbf{}", ""), "does not begin with '{'"},
    {"NulAfterTheEnd", WithHeader(std::string("{}\0x", 4), ""), "NUL"},
    {"TextAfterTheEnd", WithHeader("{}{}", ""), "not valid JSON at byte"},
    {"NotClosed", WithHeader("{", ""), "not valid JSON at byte"},
    {"Comment", WithHeader("{/**/}", ""), "not valid JSON at byte"},
    {"NotUtf8", WithHeader("{\"\xff\":1}", ""), "not valid JSON at byte"},
    {"ControlCharacter", WithHeader("{\"a\nb\":1}", ""), "not valid JSON at byte"},
    {"NameWithNewline", WithHeader("{\"a\\nb\":1}", ""), "tensor \"a\\nb\": unexp"},
    {"LongName", WithHeader(absl::StrCat("{\"", std::string(1 << 20, 'n'), "\":1}"), ""),
     "nnn...\": unexpected a number"},
    {"DepthBomb", WithHeader(absl::StrCat("{\"w\":", std::string(1 << 20, '[')), ""),
     "tensor \"w\": unexpected an array"},
    {"DepthBombInShape",
     WithHeader(absl::StrCat("{\"w\":{\"shape\":", std::string(1 << 20, '[')), ""),
     "tensor \"w\": shape: unexpected an array"},
    {"DepthBombOfObjects", WithHeader(Repeat("{\"w\":", 200000), ""), "unknown field \"w\""},
    {"TensorIsNull", WithHeader(R"({"w":null})", ""), "unexpected null"},
    {"TensorIsString", WithHeader(R"({"w":"x"})", ""), "unexpected a string"},
    {"MetadataIsArray", WithHeader(R"({"__metadata__":[]})", ""), "unexpected an array"},
    {"MetadataIsNested", WithHeader(R"({"__metadata__":{"a":{}}})", ""),
     "__metadata__: unexpected an object"},
    {"MetadataIsNumber", WithHeader(R"({"__metadata__":{"a":1}})", ""),
     "__metadata__: unexpected a number"},
    {"NameTwice",
     WithHeader(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                R"("w":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
                "1234"),
     "tensor \"w\": twice"}};

INSTANTIATE_TEST_SUITE_P(Json, HostileSafetensorsTest, ::testing::ValuesIn(kHostileJson),
                         HostileName);

const HostileCase kHostileEntries[] = {
    {"Empty", W(""), "tensor \"w\": dtype missing"},
    {"NoShape", W(R"("dtype":"F32","data_offsets":[0,4])"), "shape missing"},
    {"NoOffsets", W(R"("dtype":"F32","shape":[1])"), "data_offsets missing"},
    {"UnknownField", W(R"("stride":[1])"), "unknown field \"stride\""},
    {"UnknownFieldAtTheEnd", W(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"foo":1)"),
     "tensor \"w\": unknown field \"foo\", wanted dtype, shape and data_offsets"},
    {"DtypeTwice", W(R"("dtype":"F32","dtype":"F32")"), "dtype twice"},
    {"ShapeTwice", W(R"("shape":[1],"shape":[1])"), "shape twice"},
    {"OffsetsTwice", W(R"("data_offsets":[0,4],"data_offsets":[0,4])"), "data_offsets twice"},
    {"UnknownDtype", W(R"("dtype":"F33")"), "dtype: \"F33\" is unknown"},
    {"EmptyDtype", W(R"("dtype":"")"), "dtype: \"\" is unknown"},
    {"DtypeIsNumber", W(R"("dtype":3)"), "dtype: unexpected a number"},
    {"DtypeIsArray", W(R"("dtype":["F32"])"), "dtype: unexpected an array"},
    {"ShapeIsNumber", WithShape("1"), "shape: unexpected a number"},
    {"ShapeIsObject", WithShape("{}"), "shape: unexpected an object"},
    {"ShapeOfStrings", WithShape("[\"1\"]"), "shape: unexpected a string"},
    {"ShapeOfBooleans", WithShape("[true]"), "shape: unexpected a boolean"},
    {"NegativeDim", WithShape("[-1]"), "shape: -1, wanted at least 0"},
    {"TwoNegativeDims", WithShape("[-1,-1]"), "shape: -1, wanted at least 0"},
    {"FloatDim", WithShape("[1.0]"), "shape: 1.0, wanted an integer"},
    {"ExponentDim", WithShape("[1e0]"), "shape: 1e0, wanted an integer"},
    {"NanDim", WithShape("[NaN]"), "not valid JSON"},
    {"DimOf63Bits", WithShape("[9223372036854775808]"),
     "shape: 9223372036854775808, wanted an integer below 2^63"},
    {"DimBeyond64Bits", WithShape("[18446744073709551617]"),
     "shape: 18446744073709551617, wanted an integer below 2^63"},
    {"DimsOverflow", WithShape("[4294967296,4294967296]"), "2^63 elements"},
    {"DimsOverflowBesideZero", WithShape("[0,4294967296,4294967296]"), "2^63 elements"},
    {"BytesOverflow", WithShape("[4611686018427387904]"),
     "data_offsets: 4 bytes, wanted whole ones below 2^63"},
    {"BytesWrapToRight", WithShape("[4611686018427387905]"),
     "data_offsets: 4 bytes, wanted whole ones below 2^63"},
    {"TooManyDims", WithShape("[" + Repeat("1,", 16) + "1]"), "shape: more than 16 dimensions"},
    {"EndlessShape", WithShape("[" + Repeat("1,", 1 << 20) + "1]"),
     "shape: more than 16 dimensions"},
    {"ShapeTooSmall", WithShape("[0]"), "data_offsets: 4 bytes, wanted 0 for F32"},
    {"ShapeTooLarge", WithShape("[2]"), "data_offsets: 4 bytes, wanted 8 for F32"},
    {"NoOffsetNumbers", WithOffsets("[]"), "data_offsets: [], wanted [begin, end]"},
    {"OneOffset", WithOffsets("[0]"), "data_offsets: [0], wanted [begin, end]"},
    {"ThreeOffsets", WithOffsets("[0,4,8]"), "data_offsets: more than 2 numbers"},
    {"NegativeOffset", WithOffsets("[-4,0]"), "data_offsets: -4, wanted at least 0"},
    {"OffsetsReversed", WithOffsets("[4,0]"), "data_offsets: [4, 0], wanted"},
    {"FloatOffset", WithOffsets("[0,4.0]"), "data_offsets: 4.0, wanted an integer"},
    {"HugeOffset", WithOffsets("[0,18446744073709551615]"), "wanted an integer"},
    {"OffsetsBeyondTheFile", WithOffsets("[4,8]"), "begin at 4, after a hole"},
    {"OffsetsFarBeyondTheFile", WithOffsets("[9223372036854775803,9223372036854775807]"),
     "after a hole"}};

INSTANTIATE_TEST_SUITE_P(Entry, HostileSafetensorsTest, ::testing::ValuesIn(kHostileEntries),
                         HostileName);

// Two tensors of these offsets over eight bytes.
std::string Two(const std::string& first, const std::string& second) {
  return WithHeader(
      absl::StrCat(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)", first,
                   R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)", second, "}}"),
      "12345678");
}

const HostileCase kHostileOffsets[] = {
    {"Same", Two("[0,4]", "[0,4]"), "begin at 0, inside another tensor, wanted 4"},
    {"Overlap", Two("[0,4]", "[3,7]"), "begin at 3, inside another tensor"},
    {"Hole", Two("[0,4]", "[5,9]"), "\"b\": data_offsets begin at 5, after a hole"},
    {"HoleAtTheFront", Two("[1,5]", "[5,9]"), "begin at 1, after a hole, wanted 0"},
    {"BeyondTheEnd",
     WithHeader(R"({"a":{"dtype":"U8","shape":[9],)"
                R"("data_offsets":[0,9]}})",
                "12345678"),
     "end at 9, but the file holds 8"}};

INSTANTIATE_TEST_SUITE_P(Offsets, HostileSafetensorsTest, ::testing::ValuesIn(kHostileOffsets),
                         HostileName);

// Whatever comes in, what comes out is an error or a sound list of tensors.
void ExpectSound(const std::vector<TensorEntry>& entries, std::int64_t data_bytes) {
  std::int64_t covered = 0;
  for (const TensorEntry& entry : entries) {
    ASSERT_EQ(entry.begin, covered);
    ASSERT_GE(entry.end, entry.begin);
    covered = entry.end;
  }
  ASSERT_EQ(covered, data_bytes);
}

// Flips, doubles, removes or replaces a few bytes.
std::string Mutate(std::string text, std::mt19937_64& random) {
  static constexpr absl::string_view kTokens[] = {"{", "}",       "[",    "]",    "\"",
                                                  ":", ",",       "-1",   "1e9",  "0",
                                                  "4", "\\u0000", "null", "true", "4294967296"};
  const auto below = [&random](std::size_t limit) {
    return static_cast<std::size_t>(random() % std::max<std::size_t>(limit, 1));
  };
  for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
    const std::size_t at = below(text.size());
    switch (below(5)) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1: text.erase(at, 1 + below(8)); break;
      case 2: text.insert(at, text.substr(below(text.size()), 1 + below(16))); break;
      case 3: text.resize(at); break;
      default: text.insert(at, std::string(kTokens[below(std::size(kTokens))])); break;
    }
  }
  return text;
}

const char kGoodHeader[] =
    R"({"__metadata__":{"format":"pt"},"weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
    R"("bias":{"dtype":"F16","shape":[2,1],"data_offsets":[8,12]},)"
    R"("num_batches_tracked":{"dtype":"I64","shape":[],"data_offsets":[12,20]}})";

TEST(SafetensorsFuzzTest, AMutatedHeaderGivesAnErrorOrSoundTensors) {
  std::mt19937_64 random(norm::testing::TestSeed());
  int good = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string header = Mutate(kGoodHeader, random);
    const auto entries = ParseSafetensorsHeader(header, 20);
    if (entries.ok()) {
      ++good;
      ASSERT_NO_FATAL_FAILURE(ExpectSound(*entries, 20)) << header;
    } else {
      ASSERT_EQ(entries.status().code(), absl::StatusCode::kInvalidArgument) << header;
    }
  }
  // Both ways are walked: some edits are in names and change nothing that counts.
  EXPECT_GT(good, 0);
  EXPECT_LT(good, 20000);
}

TEST_F(SafetensorsTest, AMutatedFileGivesAnErrorOrParametersInsideIt) {
  std::mt19937_64 random(norm::testing::TestSeed() + 1);
  const std::string file = WithHeader(kGoodHeader, "01234567890123456789");
  for (int i = 0; i < 3000; ++i) {
    const std::string content = Mutate(file, random);
    const auto parameters = Read(content);
    if (!parameters.ok()) continue;
    std::int64_t bytes = 0;
    for (const Parameter& parameter : *parameters) {
      const auto size =
          parameter.shape.elements() * static_cast<std::int64_t>(norm::SizeOf(parameter.dtype));
      bytes += size;
      // Every byte is there to be read.
      const std::vector<std::byte> copy(parameter.data.get(), parameter.data.get() + size);
      ASSERT_EQ(static_cast<std::int64_t>(copy.size()), size);
    }
    ASSERT_LE(bytes, static_cast<std::int64_t>(content.size()));
  }
}

}  // namespace
}  // namespace normd::testing
