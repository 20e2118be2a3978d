#include "server/model/model_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace normd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(CheckModelNameTest, TakesPlainNames) {
  for (const std::string& name :
       {std::string("a"), std::string("instance_norm_64"), std::string("7"),
        std::string("v1.2-rc_3"), std::string(128, 'x')}) {
    EXPECT_TRUE(CheckModelName(name).ok()) << name;
  }
}

TEST(CheckModelNameTest, RefusesEverythingThatCouldBeAPathOrACommand) {
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../x"),
        std::string("x/../y"), std::string("/etc"), std::string("a/b"), std::string("a\\b"),
        std::string(".hidden"), std::string("-flag"), std::string("_x"), std::string("a b"),
        std::string("a\nb"), std::string("a\0b", 3), std::string("$(reboot)"), std::string("a;b"),
        std::string("\xc3\xa9"), std::string(129, 'x')}) {
    const absl::Status status = CheckModelName(name);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("model: \"")) << name;
  }
}

TEST(CheckModelNameTest, ShowsLittleOfABadNameAndThatEscaped) {
  const std::string name = "a\nb" + std::string(1 << 20, '/');
  const std::string message(CheckModelName(name).message());
  EXPECT_LT(message.size(), 200u);
  EXPECT_THAT(message, HasSubstr("a\\nb"));
  EXPECT_THAT(message, HasSubstr("(1048579 bytes), wanted 1 to 128"));
  EXPECT_THAT(message, Not(HasSubstr("\n")));
}

}  // namespace
}  // namespace normd
