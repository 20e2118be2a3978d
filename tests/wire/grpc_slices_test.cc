#include "wire/grpc_slices.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace normd {
namespace {

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

}  // namespace
}  // namespace normd
