#include "server/rest/request_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace normd {
namespace {

using ::testing::HasSubstr;
using Progress = RequestReader::Progress;

constexpr std::size_t kMaxHead = 1024;

struct ReadRequest {
  Progress progress = Progress::kNeedsMore;
  RestHead head;
  RestRefusal refusal;
  std::string body;
  std::string left;
};

// Reads a request that comes in parts of `step` bytes.
ReadRequest ReadInParts(absl::string_view bytes, std::size_t step) {
  ReadRequest read;
  RequestReader reader(kMaxHead);
  reader.Limit(1 << 20);
  boost::beast::flat_buffer buffer;
  bool has_head = false;
  while (!bytes.empty() && (!has_head || read.progress == Progress::kNeedsMore)) {
    const absl::string_view part = bytes.substr(0, step);
    bytes.remove_prefix(part.size());
    std::memcpy(buffer.prepare(part.size()).data(), part.data(), part.size());
    buffer.commit(part.size());
    if (!has_head) {
      read.progress = reader.ReadHeadFrom(buffer, read.head, read.refusal);
      if (read.progress == Progress::kNeedsMore) continue;
      has_head = true;
      if (read.refusal.status != 0 || !read.head.chunked) break;
    }
    read.progress = reader.ReadChunksFrom(buffer, [&](ConstBytes data) {
      read.body.append(reinterpret_cast<const char*>(data.data()), data.size());
    });
  }
  read.left.assign(static_cast<const char*>(buffer.data().data()), buffer.size());
  absl::StrAppend(&read.left, bytes);
  return read;
}

TEST(RequestReaderTest, ReadsAHeadHoweverItIsCut) {
  const std::string text =
      "\r\nPOST /v2/models/m/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n"
      "Inference-Header-Content-Length: 2\r\nAuthorization: Bearer t\r\nx-request-id: id\r\n"
      "Expect: 100-continue\r\nConnection: close\r\n\r\nabc";
  for (std::size_t step = 1; step <= text.size(); ++step) {
    const ReadRequest read = ReadInParts(text, step);
    ASSERT_EQ(read.progress, Progress::kDone) << step;
    ASSERT_EQ(read.refusal.status, 0) << read.refusal.why;
    EXPECT_EQ(read.head.verb, "POST");
    EXPECT_EQ(read.head.target, "/v2/models/m/infer");
    EXPECT_EQ(read.head.content_length, 3u);
    EXPECT_EQ(read.head.json_bytes, "2");
    EXPECT_EQ(read.head.authorization, "Bearer t");
    EXPECT_EQ(read.head.request_id, "id");
    EXPECT_TRUE(read.head.expects_continue);
    EXPECT_FALSE(read.head.keep_alive);
    EXPECT_EQ(read.left, "abc");
  }
}

TEST(RequestReaderTest, ReadsChunksHoweverTheyAreCutAndNothingBehindThem) {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string next = "GET /v2 HTTP/1.1\r\n";
  const std::string chunks = "3\r\nabc\r\nA;ext=\"1\"\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
  for (std::size_t step = 1; step <= head.size() + chunks.size() + next.size(); ++step) {
    const ReadRequest read = ReadInParts(head + chunks + next, step);
    ASSERT_EQ(read.progress, Progress::kDone) << step;
    EXPECT_EQ(read.body, "abc0123456789") << step;
    EXPECT_EQ(read.left, next) << step;
  }
}

// What two readers could understand differently, and what no reader should take.
TEST(RequestReaderTest, RefusesAmbiguousHeads) {
  struct Case {
    const char* lines;
    int status;
    const char* why;
  };
  for (const Case& one : {
           Case{"Host: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n", 400, "several lengths"},
           Case{"Host: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n", 400, "Content-Length"},
           Case{"Host: h\r\nContent-Length: 1, 1\r\n", 400, "Content-Length"},
           Case{"Host: h\r\nContent-Length: +1\r\n", 400, "Content-Length"},
           Case{"Host: h\r\nContent-Length: 0x1\r\n", 400, "Content-Length"},
           Case{"Host: h\r\nContent-Length: -1\r\n", 400, "Content-Length"},
           Case{"Host: h\r\nContent-Length: 18446744073709551616\r\n", 400, "Content-Length"},
           Case{"Host: h\r\nContent-Length:\r\n", 400, "Content-Length"},
           Case{"Host: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n", 400, ""},
           Case{"Host: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n", 400, ""},
           Case{"Host: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400, ""},
           Case{"Host: h\r\nTransfer-Encoding: gzip, chunked\r\n", 400, "Transfer-Encoding"},
           Case{"Host: h\r\nTransfer-Encoding: chunked, identity\r\n", 400, "Transfer-Encoding"},
           Case{"Host: h\r\nTransfer-Encoding: xchunked\r\n", 400, "Transfer-Encoding"},
           Case{"Host: h\r\nTransfer-Encoding : chunked\r\n", 400, "head"},
           Case{"Host: h\r\nContent-Length : 1\r\n", 400, "head"},
           Case{"Host: h\r\n Content-Length: 1\r\n", 400, "head"},
           Case{"Host: h\r\nX: a\r\n\tb\r\n", 400, "folded"},
           Case{"Host: h\r\nX\r\n", 400, "head"},
           Case{"Host: h\r\nX: a\nContent-Length: 1\r\n", 400, "head"},
           Case{"Host: h\r\nX: a\rY: b\r\n", 400, "head"},
           Case{"Host: h\r\n: a\r\n", 400, "head"},
           Case{"Host: h\r\nHost: i\r\n", 400, "Host"},
           Case{"", 400, "Host: 0 of them, wanted one"},
           Case{"Host: h\r\nExpect: 200-ok\r\n", 417, "Expect"},
       }) {
    const std::string text = absl::StrCat("POST / HTTP/1.1\r\n", one.lines, "\r\n");
    for (const std::size_t step : {std::size_t{1}, text.size()}) {
      const ReadRequest read = ReadInParts(text, step);
      EXPECT_EQ(read.progress, Progress::kDone) << one.lines;
      EXPECT_EQ(read.refusal.status, one.status) << one.lines << read.refusal.why;
      EXPECT_THAT(read.refusal.why, HasSubstr(one.why)) << one.lines;
    }
  }
}

TEST(RequestReaderTest, RefusesOtherVersionsAndProtocols) {
  EXPECT_EQ(ReadInParts("GET / HTTP/2.0\r\nHost: h\r\n\r\n", 99).refusal.status, 400);
  EXPECT_EQ(ReadInParts("GET / HTTP/0.9\r\n\r\n", 99).refusal.status, 400);
  for (const absl::string_view text :
       {absl::string_view("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), absl::string_view("GET /\r\n\r\n"),
        absl::string_view("\x16\x03\x01\x02\r\n\r\n"),
        absl::string_view("G\0T / HTTP/1.1\r\n\r\n", 19),
        absl::string_view("GET / HTTP/1.1 \r\nHost: h\r\n\r\n"),
        absl::string_view("GET  / HTTP/1.1\r\nHost: h\r\n\r\n")}) {
    EXPECT_GE(ReadInParts(text, 99).refusal.status, 400) << text;
  }
}

TEST(RequestReaderTest, BoundsHeads) {
  const std::string begin = "GET / HTTP/1.1\r\nHost: h\r\nX: ";
  for (std::size_t more = kMaxHead - begin.size() - 10; more < kMaxHead; ++more) {
    const std::string text = begin + std::string(more, 'x') + "\r\n\r\n";
    for (const std::size_t step : {std::size_t{7}, text.size()}) {
      const ReadRequest read = ReadInParts(text, step);
      EXPECT_EQ(read.refusal.status, text.size() <= kMaxHead ? 0 : 431) << text.size();
    }
  }
  EXPECT_EQ(ReadInParts(std::string(2 * kMaxHead, 'G'), 100).refusal.status, 431);
}

TEST(RequestReaderTest, WaitsForTheEndOfAHeadUpToTheLimitHoweverItIsCut) {
  for (const std::string begin :
       {"GET /", "GET / HTTP/1.1\r\nHost: h\r\nx: ", "GET / HTTP/1.1\r\nHost: h\r\nx: y\r\n\r"}) {
    for (std::size_t bytes = kMaxHead - 4; bytes <= kMaxHead + 4; ++bytes) {
      std::string text = begin;
      text.insert(5, bytes - begin.size(), 'a');
      for (std::size_t step = 1; step <= bytes; ++step) {
        const ReadRequest read = ReadInParts(text, step);
        EXPECT_EQ(read.refusal.status, bytes <= kMaxHead ? 0 : 431) << bytes << " " << step;
      }
    }
  }
}

TEST(RequestReaderTest, RefusesBadChunks) {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const absl::string_view chunks :
       {"x\r\n", "3\r\nabcd\r\n0\r\n\r\n", "3\nabc\r\n0\r\n\r\n", "-1\r\na\r\n", "0x3\r\nabc\r\n",
        "3 \r\nabc\r\n0\r\n\r\nx", "11111111111111111\r\n", "FFFFFFFFFFFFFFFFF\r\n", "\r\nabc\r\n",
        "3\r\nabc0\r\n\r\n"}) {
    const ReadRequest read = ReadInParts(head + std::string(chunks), 1);
    EXPECT_TRUE(read.progress == Progress::kBad || read.progress == Progress::kTooLarge ||
                read.progress == Progress::kNeedsMore)
        << chunks;
    EXPECT_NE(read.progress, Progress::kDone) << chunks;
  }
  // A line of a chunk that never ends, and a trailer.
  for (const std::string& line :
       {"1;" + std::string(9000, 'x'), "0\r\nX: " + std::string(9000, 'x')}) {
    EXPECT_EQ(ReadInParts(head + line, 512).progress, Progress::kBad);
  }
  EXPECT_EQ(ReadInParts(head + "200000\r\n" + std::string(1 << 21, 'x'), 1 << 16).progress,
            Progress::kTooLarge);
}

}  // namespace
}  // namespace normd
