#include "server/rest/request_body.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace normd {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::int64_t kMost = std::int64_t{4} << 20;

ConstBytes BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

TEST(RequestBodyTest, ALongOneUsesTheMemoryOfTheLastAndNoneOfItsBytes) {
  BufferPool pool(kMost);
  const std::byte* last = nullptr;
  {
    RequestBody body(kMiB, pool, kMost);
    const MutableBytes room = body.Room(kMiB);
    std::memset(room.data(), 0xa5, room.size());
    body.Commit(kMiB);
    last = body.bytes().data();
    EXPECT_GE(pool.used_bytes(), static_cast<std::int64_t>(kMiB));
  }
  EXPECT_EQ(pool.used_bytes(), 0);
  RequestBody body(kMiB - 5, pool, kMost);
  EXPECT_EQ(body.size(), 0u);
  body.Append(BytesOf("abc"));
  EXPECT_EQ(body.bytes().data(), last);
  ASSERT_EQ(body.size(), 3u);
  EXPECT_EQ(std::memcmp(body.bytes().data(), "abc", 3), 0);
}

TEST(RequestBodyTest, AShortOneLeavesThePoolAlone) {
  BufferPool pool(kMost);
  const RequestBody body(kKiB, pool, kMost);
  EXPECT_EQ(pool.used_bytes(), 0);
}

TEST(RequestBodyTest, ThePoolLendsUpToItsBound) {
  BufferPool pool(kMost);
  const RequestBody first(3 * kMiB, pool, kMost);
  const std::int64_t lent = pool.used_bytes();
  RequestBody second(2 * kMiB, pool, kMost);
  EXPECT_EQ(pool.used_bytes(), lent);
  EXPECT_EQ(second.Room(2 * kMiB).size(), 2 * kMiB) << "it has memory of its own";
}

TEST(RequestBodyTest, OneThatOutgrowsItsBlockKeepsItsBytesAndReturnsTheBlock) {
  BufferPool pool(kMost);
  RequestBody body(kMiB, pool, kMost);
  const std::string half(kMiB, 'h');
  body.Append(BytesOf(half));
  body.Append(BytesOf(half));
  EXPECT_EQ(pool.used_bytes(), 0);
  ASSERT_EQ(body.size(), 2 * kMiB);
  EXPECT_EQ(std::memcmp(body.bytes().data(), (half + half).data(), 2 * kMiB), 0);
}

}  // namespace
}  // namespace normd
