#include "flags/flag_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "flags/byte_size.h"

namespace normd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FlagSetTest : public ::testing::Test {
 protected:
  FlagSetTest() {
    flags_.Add("name", &name_, "NAME", "A name.");
    flags_.Add("count", &count_, "N", "A count.");
    flags_.Add("share", &share_, "X", "A share.");
    flags_.Add("timeout", &timeout_, "DURATION", "A time.");
    flags_.Add("watch", &watch_, "", "A switch.");
    flags_.Add("notes", &notes_, "TEXT", "Begins with no.");
    flags_.Add("o", &output_, "FILE", "A letter.");
  }
  std::string Error(const std::vector<std::string>& arguments) {
    return std::string(flags_.Parse(arguments).status().message());
  }

  std::string name_ = "default";
  std::int64_t count_ = 3;
  double share_ = 0.5;
  absl::Duration timeout_ = absl::Seconds(2);
  bool watch_ = false;
  std::string notes_;
  std::string output_;
  FlagSet flags_;
};

TEST_F(FlagSetTest, UnderscoresMayBeDashes) {
  bool find_max = false;
  flags_.Add("find_max", &find_max, "", "Two words.");
  ASSERT_TRUE(flags_.Parse({"--find-max"}).ok());
  EXPECT_TRUE(find_max);
  EXPECT_FALSE(flags_.Parse({"--find--max"}).ok());
}

TEST_F(FlagSetTest, SetsValuesAndReturnsTheRest) {
  const auto rest = flags_.Parse({"first", "--name=a=b", "--count", "-7", "second", "-o", "x.npy",
                                  "--share=1e-3", "-timeout=250ms", "--watch", "--notes=n"});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_THAT(*rest, ElementsAre("first", "second"));
  EXPECT_EQ(name_, "a=b");
  EXPECT_EQ(count_, -7);
  EXPECT_EQ(output_, "x.npy");
  EXPECT_EQ(share_, 1e-3);
  EXPECT_EQ(timeout_, absl::Milliseconds(250));
  EXPECT_TRUE(watch_);
  EXPECT_EQ(notes_, "n");
}

TEST_F(FlagSetTest, KeepsDefaultsAndTakesNegatedSwitches) {
  watch_ = true;
  ASSERT_TRUE(flags_.Parse({"--nowatch", "--name="}).ok());
  EXPECT_FALSE(watch_);
  EXPECT_EQ(name_, "");
  EXPECT_EQ(count_, 3);
  ASSERT_TRUE(flags_.Parse({"--watch=true"}).ok());
  EXPECT_TRUE(watch_);
}

TEST_F(FlagSetTest, AFlagThatIsAListTakesEachOfItsOccurrences) {
  std::vector<std::string> files;
  flags_.Add("file", &files, "FILE", "Files.");
  ASSERT_TRUE(flags_.Parse({"--file=a,b", "--file", "c=d", "--file="}).ok());
  EXPECT_THAT(files, ElementsAre("a,b", "c=d", ""));
}

TEST_F(FlagSetTest, OneDeclarationHasTheDefaultAndTheCheck) {
  std::int64_t size = -1;
  std::string word = "other";
  FlagSet flags;
  flags.Add("size", &size, 5, "BYTES", "A size.",
            [](std::int64_t value) { return value > 0 ? "" : "above 0"; });
  flags.Add("word", &word, "default", "WORD", "A word.",
            [](const std::string& value) { return value.size() < 9 ? "" : "a shorter one"; });
  EXPECT_EQ(size, -1) << "a declaration sets nothing";
  flags.SetDefaults();
  EXPECT_EQ(size, 5);
  EXPECT_EQ(word, "default");
  EXPECT_TRUE(flags.Check().ok());
  EXPECT_THAT(flags.Help(), HasSubstr("--size=BYTES                A size. (5)"));
  ASSERT_TRUE(flags.Parse({"--size=0", "--word=much_longer"}).ok());
  EXPECT_EQ(flags.Check(), absl::InvalidArgumentError("--size: 0, wanted above 0"));
  ASSERT_TRUE(flags.Parse({"--size=1"}).ok());
  EXPECT_EQ(flags.Check(),
            absl::InvalidArgumentError("--word: \"much_longer\", wanted a shorter one"));
}

TEST_F(FlagSetTest, TwoDashesEndTheFlags) {
  EXPECT_THAT(flags_.Parse({"--", "--name=x", "-"}).value(), ElementsAre("--name=x", "-"));
  EXPECT_EQ(name_, "default");
}

TEST_F(FlagSetTest, SuggestsTheFlagOfNearlyThatName) {
  EXPECT_THAT(Error({"--timout=1s"}), HasSubstr("; did you mean --timeout?"));
  EXPECT_THAT(Error({"--shares"}), HasSubstr("; did you mean --share?"));
  EXPECT_THAT(Error({"--wathc"}), HasSubstr("; did you mean --watch?"));
  EXPECT_EQ(Error({"--zzzzz"}), "unknown flag --zzzzz");
  EXPECT_EQ(Error({"--x"}), "unknown flag --x");
}

TEST_F(FlagSetTest, CheckMakesTheValueOfAText) {
  std::string text;
  std::size_t letters = 9;
  const auto count = [](absl::string_view t) -> absl::StatusOr<std::size_t> {
    if (t == "none") return absl::NotFoundError("\"none\", wanted letters");
    return t.size();
  };
  flags_.AddParsed("letters", &text, &letters, "TEXT", "Letters.", count);
  EXPECT_TRUE(flags_.Check().ok());
  EXPECT_EQ(letters, 9u);
  ASSERT_TRUE(flags_.Parse({"--letters=abc"}).ok());
  EXPECT_TRUE(flags_.Check().ok());
  EXPECT_EQ(letters, 3u);
  ASSERT_TRUE(flags_.Parse({"--letters=none"}).ok());
  EXPECT_EQ(flags_.Check(), absl::InvalidArgumentError("--letters: \"none\", wanted letters"));
}

TEST_F(FlagSetTest, HelpHasSectionsAndLinesThatFit) {
  flags_.Section("Of another kind");
  bool far = false;
  flags_.Add("far", &far, "",
             std::string(30, 'a') + " " + std::string(30, 'b') + " " + std::string(30, 'c'));
  std::string value;
  flags_.Add("name_wider_than_the_column", &value, "TEXT", "A text.");
  const std::string help = flags_.Help();
  EXPECT_THAT(help, HasSubstr("  --name_wider_than_the_column=TEXT\n" + std::string(30, ' ') +
                              "A text.\n"));
  EXPECT_THAT(help, HasSubstr("\n\nOf another kind\n  --far "));
  EXPECT_THAT(help, HasSubstr(std::string(30, 'b') + "\n" + std::string(30, ' ') +
                              std::string(30, 'c') + "\n"));
}

TEST_F(FlagSetTest, NamesWhatIsWrong) {
  EXPECT_THAT(Error({"--timeout=2"}), HasSubstr("wanted DURATION, a time with its unit"));
  EXPECT_THAT(Error({"--colour=red"}), HasSubstr("unknown flag --colour=red"));
  EXPECT_THAT(Error({"--nocount"}), HasSubstr("unknown flag --nocount"));
  EXPECT_THAT(Error({"--count=three"}), HasSubstr("--count: \"three\", wanted N"));
  EXPECT_THAT(Error({"--timeout=5"}), HasSubstr("--timeout: \"5\", wanted DURATION"));
  EXPECT_THAT(Error({"--watch=maybe"}), HasSubstr("--watch: \"maybe\", wanted true or false"));
  EXPECT_THAT(Error({"--name"}), HasSubstr("--name: wants a value, NAME"));
}

TEST_F(FlagSetTest, HelpShowsEachFlagWithItsDefault) {
  const std::string help = flags_.Help();
  EXPECT_THAT(help, HasSubstr("  --name=NAME                 A name. (default)\n"));
  EXPECT_THAT(help, HasSubstr("  --watch                     A switch.\n"));
  EXPECT_THAT(help, HasSubstr("  -o=FILE                     A letter.\n"));
  EXPECT_THAT(help, HasSubstr("A time. (2s)"));
}

TEST_F(FlagSetTest, TakesNumbersOfBytesWithTheirUnit) {
  std::int64_t size = 0;
  FlagSet flags;
  flags.AddBytes("size", &size, 64 << 20, "A size.",
                 [](std::int64_t value) { return value >= 0 ? "" : "at least 0"; });
  EXPECT_THAT(flags.Help(), HasSubstr("--size=BYTES                A size. (64MiB)"));
  ASSERT_TRUE(flags.Parse({"--size=1GB"}).ok());
  EXPECT_EQ(size, 1'000'000'000);
  ASSERT_TRUE(flags.Parse({"--size=-5"}).ok());
  EXPECT_EQ(flags.Check().message(), "--size: -5, wanted at least 0");
  EXPECT_EQ(flags.Parse({"--size=64M"}).status().message(),
            "--size: \"64M\", wanted BYTES, a whole number, alone or with a unit, such as 64MiB or "
            "1GB");
  EXPECT_EQ(size, -5);
}

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

TEST(ByteSizeTest, ReadsEachUnit) {
  EXPECT_EQ(ParseByteSize("0"), 0);
  EXPECT_EQ(ParseByteSize("4097"), 4097);
  EXPECT_EQ(ParseByteSize("-1"), -1);
  EXPECT_EQ(ParseByteSize("3KiB"), 3 << 10);
  EXPECT_EQ(ParseByteSize("64MiB"), 64 << 20);
  EXPECT_EQ(ParseByteSize("2GiB"), std::int64_t{2} << 30);
  EXPECT_EQ(ParseByteSize("5TiB"), std::int64_t{5} << 40);
  EXPECT_EQ(ParseByteSize("3kB"), 3000);
  EXPECT_EQ(ParseByteSize("3KB"), 3000);
  EXPECT_EQ(ParseByteSize("64MB"), 64'000'000);
  EXPECT_EQ(ParseByteSize("2GB"), 2'000'000'000);
  EXPECT_EQ(ParseByteSize("5TB"), 5'000'000'000'000);
  EXPECT_EQ(ParseByteSize("9223372036854775807"), kMost);
}

TEST(ByteSizeTest, RefusesOtherTexts) {
  for (const char* text :
       {"", "MiB", "B", "1B", "1M", "1.5GiB", "1 e3", "1MiBs", "1mib", "0x10", "1MiBKiB", "inf",
        "9223372036854775808", "8388608TiB", "-8388609TiB", "9223373TB"}) {
    EXPECT_EQ(ParseByteSize(text), std::nullopt) << text;
  }
}

TEST(ByteSizeTest, WritesWhatItReads) {
  EXPECT_EQ(FormatByteSize(0), "0");
  EXPECT_EQ(FormatByteSize(4096), "4KiB");
  EXPECT_EQ(FormatByteSize(64 << 20), "64MiB");
  EXPECT_EQ(FormatByteSize(std::int64_t{3} << 29), "1536MiB");
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1023}, std::int64_t{1024},
                                   std::int64_t{-2048}, std::int64_t{1} << 50, kMost, -kMost}) {
    EXPECT_EQ(ParseByteSize(FormatByteSize(bytes)), bytes) << bytes;
  }
}

}  // namespace
}  // namespace normd
