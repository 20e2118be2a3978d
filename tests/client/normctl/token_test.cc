// `normctl token`: the server takes the line, and the token with it.

#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/identity/tokens.h"
#include "tests/client/normctl/normctl_fixture.h"

namespace normd::client {
namespace {

using ::testing::HasSubstr;

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(NormctlTest, TokenMakesATokenThatTheServerTakesByItsLine) {
  std::set<std::string> tokens;
  for (int i = 0; i < 5; ++i) {
    const std::string path = folder_.File(absl::StrCat("t", i));
    const Ran ran = Invoke({"token", "team.a", "--out", path});
    ASSERT_EQ(ran.code, kExitOk) << ran.err;
    struct stat info {};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600U);
    std::string token = Contents(path);
    ASSERT_EQ(token.back(), '\n');
    token.pop_back();
    EXPECT_EQ(ran.out.find(token), std::string::npos) << "the token is printed nowhere";
    EXPECT_TRUE(tokens.insert(token).second);
    const std::string header = absl::StrCat("Bearer ", token);
    const auto bearer = BearerToken(header);
    ASSERT_TRUE(bearer.ok()) << token;
    const auto table = TokenTable::Parse(ran.out);
    ASSERT_TRUE(table.ok()) << table.status();
    EXPECT_TRUE(table->Find(*bearer).has_value());
    EXPECT_EQ(table->names()[0], "team.a");
  }
}

TEST_F(NormctlTest, TokenOverwritesNoFileAndTakesNoWrongName) {
  const std::string path = folder_.File("token");
  ASSERT_EQ(Invoke({"token", "a", "--out", path}).code, kExitOk);
  const std::string before = Contents(path);
  const Ran again = Invoke({"token", "a", "--out", path});
  EXPECT_EQ(again.code, kExitFailed);
  EXPECT_THAT(again.err, HasSubstr("ALREADY_EXISTS"));
  EXPECT_EQ(Contents(path), before);
  for (const std::string& name : {std::string(), std::string("a b"), std::string("-a"),
                                  std::string("a\nb"), std::string(65, 'a')}) {
    EXPECT_NE(Invoke({"token", name, "--out", folder_.File("no")}).code, kExitOk) << name;
    EXPECT_EQ(Contents(folder_.File("no")), "");
  }
  EXPECT_EQ(Invoke({"token", "a"}).code, kExitUsage);
  EXPECT_EQ(Invoke({"token"}).code, kExitUsage);
}

TEST_F(NormctlTest, TokenAsJsonHasTheSameDigest) {
  const Ran ran = Invoke({"token", "a", "--json", "--out", folder_.File("token")});
  ASSERT_EQ(ran.code, kExitOk) << ran.err;
  const Json json = Json::parse(ran.out);
  std::string token = Contents(folder_.File("token"));
  token.pop_back();
  const auto table =
      TokenTable::Parse(absl::StrCat("a sha256:", json["sha256"].get<std::string>()));
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_TRUE(table->Find(token).has_value());
}

}  // namespace
}  // namespace normd::client
