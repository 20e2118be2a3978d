#include "wire/stream_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "normd/v1/norm_service.pb.h"
#include "tests/support/tensor.h"
#include "tests/wire/agreement.h"
#include "tests/wire/wire_writer.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using Kind = StreamPartView::Kind;

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
