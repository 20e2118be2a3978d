#include "server/identity/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/identity/private_file.h"
#include "tests/server/identity/identity_files.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Found(const TokenTable& table, const std::string& token) {
  const auto name = table.Find(token);
  return name.has_value() ? table.names()[*name] : "nobody";
}

TEST(Sha256Test, GivesTheStandardsExamples) {
  const auto hex = [](const Digest& digest) {
    std::string text;
    for (const int byte : digest) absl::StrAppend(&text, absl::Hex(byte, absl::kZeroPad2));
    return text;
  };
  EXPECT_EQ(hex(Sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(Sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(Sha256("abc")), hex(Sha256("abc"))) << "nothing is left of the one before";
}

TEST(TokenTableTest, AnEmptyFileKnowsNobody) {
  const auto table = TokenTable::Parse("");
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(Found(*table, TokenOf('a')), "nobody");
  EXPECT_EQ(Found(*table, ""), "nobody");
}

TEST(TokenTableTest, FindsEachOfManyAndNoneThatDiffersInABit) {
  std::string text = "# name and digest\n\n";
  for (int i = 0; i < 300; ++i) {
    absl::StrAppend(&text, TokenLine(absl::StrCat("t", i), absl::StrCat(TokenOf('x'), i)));
  }
  const auto table = TokenTable::Parse(text);
  ASSERT_TRUE(table.ok()) << table.status();
  for (int i = 0; i < 300; ++i) {
    std::string token = absl::StrCat(TokenOf('x'), i);
    EXPECT_EQ(Found(*table, token), absl::StrCat("t", i));
    token[0] ^= 1;
    EXPECT_EQ(Found(*table, token), "nobody");
  }
  EXPECT_EQ(Found(*table, TokenOf('x')), "nobody") << "the beginning of all of them";
}

// A comparison that looks at a part of the digest would find the wrong one.
TEST(TokenTableTest, ADigestThatDiffersInAnyOneBitIsAnother) {
  const std::string token = TokenOf('k');
  const std::string line = TokenLine("k", token);
  const std::size_t begin = line.find(':') + 1;
  for (std::size_t digit = 0; digit < 64; ++digit) {
    for (const int bit : {1, 2, 4, 8}) {
      std::string changed = line;
      const int value = std::stoi(changed.substr(begin + digit, 1), nullptr, 16) ^ bit;
      changed.replace(begin + digit, 1, absl::StrCat(absl::Hex(value)));
      const auto table = TokenTable::Parse(changed);
      ASSERT_TRUE(table.ok());
      EXPECT_EQ(Found(*table, token), "nobody") << digit << " " << bit;
    }
  }
}

TEST(TokenTableTest, ANameMayHaveSeveralTokensWhileTheyAreExchanged) {
  const auto table =
      TokenTable::Parse(TokenLine("team", TokenOf('1')) + TokenLine("other", TokenOf('2')) +
                        TokenLine("team", TokenOf('3')));
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(Found(*table, TokenOf('1')), "team");
  EXPECT_EQ(Found(*table, TokenOf('2')), "other");
  EXPECT_EQ(Found(*table, TokenOf('3')), "team");
  EXPECT_EQ(table->names().size(), 2U);
}

TEST(TokenTableTest, TakesAnyBlanksAndBothCasesOfDigits) {
  const std::string line = TokenLine("name", TokenOf('a'));
  std::string upper = line;
  for (std::size_t i = line.find(':'); i < upper.size(); ++i) {
    upper[i] = absl::ascii_toupper(static_cast<unsigned char>(upper[i]));
  }
  for (const std::string& text :
       {upper, "\t" + line, line.substr(0, line.size() - 1), "name \t sha256:" + line.substr(12),
        line.substr(0, line.size() - 1) + "\r\n", "#x\n" + line + "#y"}) {
    const auto table = TokenTable::Parse(text);
    ASSERT_TRUE(table.ok()) << table.status() << text;
    EXPECT_EQ(Found(*table, TokenOf('a')), "name") << text;
  }
}

TEST(TokenTableTest, NamesTheLineAndQuotesNoSecret) {
  const std::string secret = "hunter2-which-somebody-put-here-by-mistake";
  const std::string good = TokenLine("good", TokenOf('g'));
  const std::string digits(64, 'a');
  for (const auto& [line, wanted] : std::vector<std::pair<std::string, std::string>>{
           {secret, "line 3: 1 words"},
           {"name " + secret, "not sha256:"},
           {"name sha256:" + secret, "not sha256:"},
           {"name sha512:" + digits, "not sha256:"},
           {"name sha256:" + digits + "a", "not sha256:"},
           {"name sha256:" + digits.substr(1), "not sha256:"},
           {"name sha256:" + digits.substr(1) + "g", "not sha256:"},
           {"name sha256:" + digits + " " + secret, "3 words"},
           {"name: sha256:" + digits, "no name"},
           {"/" + secret + " sha256:" + digits, "no name"},
           {std::string("na\0me sha256:", 13) + digits, "no name"}}) {
    const auto table = TokenTable::Parse(good + "# a comment\n" + line + "\n");
    ASSERT_FALSE(table.ok()) << line;
    EXPECT_THAT(std::string(table.status().message()), HasSubstr("line 3")) << line;
    EXPECT_THAT(std::string(table.status().message()), HasSubstr(wanted)) << line;
    EXPECT_THAT(std::string(table.status().message()), Not(HasSubstr("hunter2"))) << line;
  }
}

TEST(TokenTableTest, RefusesTheSameTokenTwice) {
  const auto table =
      TokenTable::Parse(TokenLine("one", TokenOf('a')) + TokenLine("two", TokenOf('a')));
  ASSERT_FALSE(table.ok());
  EXPECT_THAT(std::string(table.status().message()),
              HasSubstr("line 2: token \"two\": the same as in line 1"));
}

TEST(TokenTableTest, RefusesMoreThanItsMost) {
  std::string text;
  for (std::size_t i = 0; i <= kMaxTokens; ++i) {
    absl::StrAppend(&text, "t sha256:", absl::Hex(i, absl::kZeroPad16), std::string(48, '0'), "\n");
  }
  EXPECT_THAT(std::string(TokenTable::Parse(text).status().message()),
              HasSubstr("line 10001: wanted at most 10000"));
  text.resize(text.rfind('\n', text.size() - 2) + 1);
  EXPECT_TRUE(TokenTable::Parse(text).ok());
}

TEST(BearerTokenTest, TakesTheSchemeInAnyCaseAndTokensOfTheRightLength) {
  for (const std::string scheme : {"Bearer ", "bearer ", "BEARER   "}) {
    const std::string sent = scheme + TokenOf('a');
    const auto token = BearerToken(sent);
    ASSERT_TRUE(token.ok()) << scheme;
    EXPECT_EQ(*token, TokenOf('a'));
  }
  EXPECT_TRUE(BearerToken("Bearer " + std::string(kMinTokenBytes, 'a')).ok());
  EXPECT_TRUE(BearerToken("Bearer " + std::string(kMaxTokenBytes, 'a')).ok());
  for (const std::string& wrong :
       {std::string(), std::string("Bearer"), std::string("Bearer "), "Basic " + TokenOf('a'),
        "Bearer" + TokenOf('a'), TokenOf('a'), "Bearer " + std::string(kMinTokenBytes - 1, 'a'),
        "Bearer " + std::string(kMaxTokenBytes + 1, 'a')}) {
    const auto token = BearerToken(wrong);
    ASSERT_FALSE(token.ok()) << wrong;
    EXPECT_THAT(std::string(token.status().message()), Not(HasSubstr("aaaa")));
  }
}

std::string ErrorOf(const std::string& path, Guarded guarded = Guarded::kFromReaders) {
  const auto file = ReadPrivateFile(path, guarded);
  return file.ok() ? "none" : std::string(file.status().message());
}

TEST(PrivateFileTest, ReadsAllOfAFileAlsoBehindALink) {
  const SecretFolder folder;
  const std::string text("a\0b\n", 4);
  const std::string path = folder.Write("file", text);
  std::filesystem::create_symlink("file", folder.File("link"));
  for (const std::string& name : {path, folder.File("link")}) {
    const auto file = ReadPrivateFile(name, Guarded::kFromReaders);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->text, text);
    EXPECT_TRUE(file->young);
    EXPECT_EQ(*VersionOfFile(name), file->version);
  }
  EXPECT_EQ(ReadPrivateFile(folder.Write("empty", ""), Guarded::kFromReaders)->text, "");
}

TEST(PrivateFileTest, AnyModeThatEverybodyCanUseIsRefused) {
  const SecretFolder folder;
  for (mode_t mode = 0; mode <= 0777; ++mode) {
    const std::string path = folder.Write("file", "x", mode | 0400);
    const bool read_by_all = (mode & 04) != 0;
    const bool written_by_all = (mode & 02) != 0;
    EXPECT_EQ(ErrorOf(path, Guarded::kFromReaders) == "none", !read_by_all && !written_by_all)
        << std::oct << mode;
    EXPECT_EQ(ErrorOf(path, Guarded::kFromWriters) == "none", !written_by_all) << std::oct << mode;
  }
  EXPECT_THAT(ErrorOf(folder.Write("file", "x", 0644)),
              HasSubstr("file: mode 0644 lets every user of the machine read it, wanted 0640"));
}

TEST(PrivateFileTest, RefusesWhatIsNoRegularFileAndWaitsForNone) {
  const SecretFolder folder;
  EXPECT_THAT(ErrorOf(folder.File("missing")), HasSubstr("missing"));
  EXPECT_THAT(ErrorOf(folder.File("")), HasSubstr("wanted a regular file"));
  ASSERT_EQ(mkfifo(folder.File("fifo").c_str(), 0600), 0);
  EXPECT_THAT(ErrorOf(folder.File("fifo")), HasSubstr("wanted a regular file"));
  EXPECT_THAT(ErrorOf("/dev/zero"), HasSubstr("wanted a regular file"));
  std::filesystem::create_symlink("loop", folder.File("loop"));
  EXPECT_NE(ErrorOf(folder.File("loop")), "none");
}

TEST(PrivateFileTest, RefusesMoreThanFourMebibytes) {
  const SecretFolder folder;
  EXPECT_EQ(ErrorOf(folder.Write("file", std::string(4 << 20, 'x'))), "none");
  EXPECT_THAT(ErrorOf(folder.Write("file", std::string((4 << 20) + 1, 'x'))),
              HasSubstr("4194305 bytes, wanted at most 4194304"));
}

TEST(PrivateFileTest, AFileInAnothersPlaceHasAnotherVersion) {
  const SecretFolder folder;
  const std::string path = folder.Write("file", "one");
  const FileState before = *VersionOfFile(path);
  folder.Write("file", "two");
  EXPECT_FALSE(*VersionOfFile(path) == before);
}

}  // namespace
}  // namespace normd::testing
