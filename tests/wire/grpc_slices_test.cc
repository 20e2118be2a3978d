#include "wire/grpc_slices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "normd/v1/model_config.pb.h"
#include "normd/v1/norm_service.pb.h"
#include "tests/support/tensor.h"
#include "tests/wire/agreement.h"
#include "tests/wire/wire_writer.h"
#include "wire/data_type.h"
#include "wire/slice_stream.h"
#include "wire/stream_part.h"
#include "wire/tensor_message.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using Kind = StreamPartView::Kind;

ConstBytes BytesOf(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    EXPECT_GT(slice.size(), 0U);
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

TEST(SliceHoldingTest, KeepsItsOwnerUntilTheLastReferenceGoes) {
  auto owner = std::make_shared<std::string>(1000, 'd');
  const std::weak_ptr<std::string> watch = owner;
  const char* data = owner->data();
  {
    const ConstBytes bytes = BytesOf(*owner);
    grpc::Slice copy;
    {
      const grpc::Slice slice = SliceHolding(bytes, std::exchange(owner, nullptr));
      EXPECT_EQ(reinterpret_cast<const char*>(slice.begin()), data) << "not a copy";
      copy = slice;
    }
    EXPECT_FALSE(watch.expired());
    EXPECT_EQ(copy.size(), 1000U);
  }
  EXPECT_TRUE(watch.expired());
}

TEST(AssembleTest, PutsEachTensorsDataBehindItsPartAndLeavesEmptyOnesOut) {
  EncodedMessage message;
  message.bytes.assign({'a', 'a', 'b', 'b', 'b', 'c'});
  message.ends = {2, 5, 6};
  const std::string big(1000, 'B');
  const grpc::Slice data[] = {grpc::Slice("AAAA", 4), grpc::Slice(), grpc::Slice(big)};
  EXPECT_EQ(Flatten(Assemble(message, data)), "aaAAAAbbbc" + big);
}

TEST(AssembleTest, AMessageWithoutTensorsIsItsFields) {
  EncodedMessage message;
  message.bytes.assign({'f', 'i', 'e', 'l', 'd', 's'});
  EXPECT_EQ(Flatten(Assemble(message, {})), "fields");
}

TEST(ViewsOfTest, ViewsTheSlicesInOrderShortOnesInPlace) {
  std::vector<grpc::Slice> slices = {grpc::Slice("ab"), grpc::Slice(),
                                     grpc::Slice(std::string(100, 'c'))};
  const auto views = ViewsOf(slices);
  ASSERT_EQ(views.size(), 3U);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    EXPECT_EQ(views[i].size(), slices[i].size());
    EXPECT_EQ(reinterpret_cast<const std::uint8_t*>(views[i].data()), slices[i].begin());
  }
}

TEST(SliceStreamTest, NeverGivesAnEmptyBuffer) {
  // As many empty slices before, between and behind the bytes as nobody would send in good faith.
  std::vector<std::size_t> cuts(100000, 0);
  cuts.insert(cuts.end(), 100000, 3);
  cuts.insert(cuts.end(), 100000, 5);
  const Slices slices("hello", cuts);
  SliceStream stream(slices.views());
  std::string read;
  const void* data = nullptr;
  int size = 0;
  int buffers = 0;
  while (stream.Next(&data, &size)) {
    ASSERT_GT(size, 0);
    read.append(static_cast<const char*>(data), static_cast<std::size_t>(size));
    ++buffers;
  }
  EXPECT_EQ(read, "hello");
  EXPECT_EQ(buffers, 2);
  EXPECT_FALSE(stream.Next(&data, &size));
}

TEST(SliceStreamTest, BacksUpAndSkipsAcrossEmptySlices) {
  std::mt19937_64 random(norm::testing::TestSeed());
  for (int i = 0; i < 2000; ++i) {
    std::string wire(random() % 60, '\0');
    for (char& c : wire) c = static_cast<char>(random());
    const Slices slices(wire, RandomCuts(random, wire.size(), 20));
    SliceStream stream(slices.views());
    std::size_t at = 0;
    const void* data = nullptr;
    int size = 0;
    while (at < wire.size()) {
      if (random() % 3 == 0) {
        const int skip = static_cast<int>(random() % 8);
        const std::size_t left = wire.size() - at;
        ASSERT_EQ(stream.Skip(skip), static_cast<std::size_t>(skip) <= left);
        at += std::min(static_cast<std::size_t>(skip), left);
      } else {
        ASSERT_TRUE(stream.Next(&data, &size));
        ASSERT_EQ(std::string(static_cast<const char*>(data), static_cast<std::size_t>(size)),
                  wire.substr(at, static_cast<std::size_t>(size)));
        const int back = static_cast<int>(random() % (static_cast<unsigned>(size) + 1));
        stream.BackUp(back);
        at += static_cast<std::size_t>(size - back);
      }
      ASSERT_EQ(stream.ByteCount(), static_cast<std::int64_t>(at));
    }
    ASSERT_FALSE(stream.Next(&data, &size));
  }
}

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

// A request as the codec reads it: what came, and in which part.
template <typename Message, typename Decode>
void ExpectTheGeneratedParts(Decode decode, std::mt19937_64& random) {
  for (int i = 0; i < 200; ++i) {
    Message message;
    std::string wanted;
    if (i % 2 == 0) {
      message.mutable_header()->set_model(std::string(random() % 40, 'm'));
      message.mutable_header()->set_version(static_cast<std::int64_t>(random() % 1000));
      wanted = message.header().SerializeAsString();
    } else {
      wanted = std::string(random() % 300, static_cast<char>('a' + i % 26));
      message.set_chunk(wanted);
    }
    std::string wire = message.SerializeAsString();
    if (i % 3 == 0) wire += std::string("\x78\x05", 2);  // An unknown field.
    std::vector<std::size_t> cuts = RandomCuts(random, wire.size(), 40);
    const Slices slices(wire, cuts);
    const auto part = decode(slices.views());
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->kind, i % 2 == 0 ? Kind::kHeader : Kind::kChunk);
    EXPECT_EQ(Join(part->bytes), wanted);
    EXPECT_EQ(part->size, static_cast<std::int64_t>(wanted.size()));
    for (const ConstBytes view : part->bytes) EXPECT_FALSE(view.empty());
  }
}

TEST(StreamPartTest, BothSidesReadWhatTheGeneratedClassesWriteFromAnySlicesEmptyOnesAmongThem) {
  std::mt19937_64 random(norm::testing::TestSeed());
  ExpectTheGeneratedParts<v1::NormalizeStreamRequest>(DecodeStreamRequest, random);
  ExpectTheGeneratedParts<v1::NormalizeStreamResponse>(DecodeStreamResponse, random);
}

TEST(StreamPartTest, AResponseMayBeATrailerWhichOfARequestIsAnUnknownField) {
  v1::NormalizeStreamResponse message;
  message.mutable_trailer()->set_pieces(7);
  const Slices slices(message.SerializeAsString(), {});
  const auto response = DecodeStreamResponse(slices.views());
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->kind, Kind::kTrailer);
  EXPECT_EQ(Join(response->bytes), message.trailer().SerializeAsString());
  const auto request = DecodeStreamRequest(slices.views());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->kind, Kind::kNone);
}

TEST(StreamPartTest, RefusesEveryTruncatedMessageAndMoreThanOnePart) {
  v1::NormalizeStreamRequest message;
  message.set_chunk("0123456789");
  const std::string wire = message.SerializeAsString();
  for (const auto decode : {DecodeStreamRequest, DecodeStreamResponse}) {
    for (std::size_t size = 1; size < wire.size(); ++size) {
      const Slices slices(wire.substr(0, size), {});
      EXPECT_THAT(std::string(decode(slices.views()).status().message()),
                  HasSubstr("malformed protobuf"))
          << size;
    }
    const Slices twice(wire + wire, {wire.size()});
    EXPECT_THAT(std::string(decode(twice.views()).status().message()),
                HasSubstr("part: more than one"));
  }
}

TEST(StreamPartTest, AChunksHeadAndItsBytesAreTheGeneratedMessage) {
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{127}, std::size_t{128}, std::size_t{1} << 20}) {
    const std::string bytes(size, 'y');
    v1::NormalizeStreamResponse response;
    response.set_chunk(bytes);
    EXPECT_TRUE(EncodeStreamChunkHead(size) + bytes == response.SerializeAsString()) << size;
    v1::NormalizeStreamRequest request;
    request.set_chunk(bytes);
    EXPECT_TRUE(EncodeStreamChunkHead(size) + bytes == request.SerializeAsString()) << size;
  }
}

}  // namespace
}  // namespace normd::testing
