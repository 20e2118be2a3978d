#include "base/printable.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/retry_after.h"

namespace normd {
namespace {

TEST(PrintableTest, LeavesPrintableAsciiAsItIs) {
  EXPECT_EQ(Printable("model \"x\", 100%"), "model \"x\", 100%");
  EXPECT_EQ(Printable(""), "");
}

TEST(PrintableTest, KeepsForgedLogLinesOnOneLine) {
  EXPECT_EQ(Printable("a\n[info] all is well\r\tb"), "a\\n[info] all is well\\r\\tb");
}

TEST(PrintableTest, EscapesControlCharactersAndOtherBytes) {
  EXPECT_EQ(Printable(absl::string_view("\x1b[31m\0\x7f", 7)), "\\x1b[31m\\x00\\x7f");
  EXPECT_EQ(Printable("\xc3\xa9"), "\\xc3\\xa9");
}

TEST(PrintableTest, DoublesBackslashesSoThatNoInputLooksEscaped) {
  EXPECT_EQ(Printable("\\n"), "\\\\n");
}

TEST(PrintableTest, CutsWhatExceedsTheLimit) {
  EXPECT_EQ(Printable("abcdef", 6), "abcdef");
  EXPECT_EQ(Printable("abcdefg", 6), "abcdef...");
}

TEST(RetryAfterTest, IsWhatWasSetLast) {
  absl::Status status = absl::InternalError("x");
  EXPECT_EQ(RetryAfterOf(status), std::nullopt);
  SetRetryAfter(std::chrono::seconds(2), status);
  SetRetryAfter(Duration(0), status);
  EXPECT_EQ(RetryAfterOf(status), Duration(0));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
}

TEST(RetryAfterTest, AStatusThatIsOkHasNone) {
  absl::Status status;
  SetRetryAfter(Duration(1), status);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(RetryAfterOf(status), std::nullopt);
}

}  // namespace
}  // namespace normd
