#include "server/model/repository.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/model/model_name.h"
#include "tests/server/model/files.h"

namespace normd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 30;
constexpr char kConfig[] = "m/config.textproto";
constexpr char kParams[] = "m/1/params.safetensors";

std::string RmsConfig(std::size_t elements) {
  return absl::StrCat("rms_norm { normalized_shape: ", elements, " }");
}
std::string Weights(float value, std::size_t elements = 4) {
  return Safetensors({FloatTensor("weight", std::vector<float>(elements, value))});
}
std::vector<float> WeightsOf(const Repository::Files& files) {
  const Parameter& weight = files.parameters.at(0);
  std::vector<float> values(static_cast<std::size_t>(weight.shape.elements()));
  std::memcpy(values.data(), weight.data.get(), values.size() * sizeof(float));
  return values;
}

class RepositoryTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& path) const { return dir_.path() + "/" + path; }
  // As `cp` over it: the same file, truncated and written again.
  void Overwrite(const std::string& path, const std::string& content) {
    std::ofstream(Path(path), std::ios::binary | std::ios::trunc) << content;
  }
  // As deployments should: another file takes the name.
  void Replace(const std::string& path, const std::string& content) {
    dir_.Write(path + ".tmp", content);
    std::filesystem::rename(Path(path + ".tmp"), Path(path));
  }
  absl::StatusOr<Repository::Files> Read() {
    return Repository({dir_.path()},
                      [this] {
                        if (++reads_; after_read_) after_read_();
                      })
        .Read("m", 1, kMaxFileBytes);
  }

  TempFolder dir_;
  std::function<void()> after_read_;
  int reads_ = 0;
};

TEST_F(RepositoryTest, ReadsAQuietModelOnce) {
  dir_.Write(kConfig, RmsConfig(4));
  dir_.Write(kParams, Weights(1));
  const auto files = Read();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(WeightsOf(*files), std::vector<float>(4, 1));
  EXPECT_EQ(reads_, 1);
}

TEST_F(RepositoryTest, ReadsAgainWhatChangedMeanwhile) {
  const std::pair<const char*, std::function<void()>> changes[] = {
      {"parameters overwritten", [this] { Overwrite(kParams, Weights(2)); }},
      {"parameters replaced", [this] { Replace(kParams, Weights(2)); }},
      {"config overwritten", [this] { Overwrite(kConfig, RmsConfig(4) + "# more"); }},
      {"config replaced", [this] { Replace(kConfig, RmsConfig(4)); }},
      {"version replaced", [this] {
         dir_.Write("m/1.tmp/params.safetensors", Weights(2));
         std::filesystem::remove_all(Path("m/1"));
         std::filesystem::rename(Path("m/1.tmp"), Path("m/1"));
       }}};
  for (const auto& [what, change] : changes) {
    dir_.Write(kConfig, RmsConfig(4));
    dir_.Write(kParams, Weights(1));
    reads_ = 0;
    after_read_ = [this, change = change] {
      if (reads_ == 1) change();
    };
    const auto files = Read();
    ASSERT_TRUE(files.ok()) << what << ": " << files.status();
    EXPECT_EQ(reads_, 2) << what;
  }
}

// A file that `cp` has begun to write is shorter than its header says. That is no verdict yet.
TEST_F(RepositoryTest, AnErrorCountsOnlyWhenTheFileStayedAsItWas) {
  dir_.Write(kConfig, RmsConfig(4));
  dir_.Write(kParams, Weights(1).substr(0, 70));
  after_read_ = [this] {
    if (reads_ == 1) Overwrite(kParams, Weights(2));
  };
  const auto files = Read();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(WeightsOf(*files), std::vector<float>(4, 2));
}

TEST_F(RepositoryTest, GivesUpOnAFileThatDoesNotComeToRest) {
  dir_.Write(kConfig, RmsConfig(4));
  dir_.Write(kParams, Weights(1));
  after_read_ = [this] { Overwrite(kParams, Weights(static_cast<float>(reads_))); };
  const absl::Status status = Read().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("params.safetensors: changed while it was read, 7 times: load it again"));
  EXPECT_EQ(reads_, 7);
}

// As `while true; do cp a params; cp b params; done` beside LoadModel. Equal weights tell a whole
// state from a mixture. Large enough for a write and a read to take some time.
TEST_F(RepositoryTest, NeverServesAMixtureOfTwoStates) {
  constexpr std::size_t kElements = 1 << 20;
  dir_.Write(kConfig, RmsConfig(kElements));
  const std::string states[] = {Weights(1, kElements), Weights(2, kElements)};
  dir_.Write(kParams, states[0]);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 1; !stop.load(); ++i) {
      Overwrite(kParams, states[i % 2]);
      // Between the copies the file is whole, now for a long and now for a short time.
      std::this_thread::sleep_for(std::chrono::milliseconds(i % 3 * 15));
    }
  });
  int whole = 0;
  int refused = 0;
  for (int i = 0; i < 30; ++i) {
    const auto files = Read();
    if (!files.ok()) {
      ++refused;
      EXPECT_THAT(files.status().code(),
                  ::testing::AnyOf(absl::StatusCode::kAborted, absl::StatusCode::kInvalidArgument))
          << files.status();
      continue;
    }
    ++whole;
    const std::vector<float> values = WeightsOf(*files);
    ASSERT_EQ(std::count(values.begin(), values.end(), values[0]),
              static_cast<std::ptrdiff_t>(values.size()));
  }
  stop.store(true);
  writer.join();
  EXPECT_EQ(whole + refused, 30);
  RecordProperty("refused", refused);
}

TEST_F(RepositoryTest, RefusesAWrongShapeBeforeItReadsTheData) {
  dir_.Write(kConfig, RmsConfig(4));
  // 800 MB that are nowhere on the disk: to read them would take as much memory.
  constexpr std::int64_t kBytes = 800'000'000;
  const std::string header = absl::StrCat(R"({"weight":{"dtype":"F32","shape":[)", kBytes / 4,
                                          R"(],"data_offsets":[0,)", kBytes, "]}}");
  dir_.Write(kParams, WithHeader(header, ""));
  const auto size = static_cast<off_t>(8 + header.size()) + kBytes;
  ASSERT_EQ(truncate(Path(kParams).c_str(), size), 0);
  const auto peak = [] {
    std::ifstream status("/proc/self/status");
    std::string line;
    while (std::getline(status, line)) {
      if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6));
    }
    return 0ll;
  };
  const long long before_kib = peak();
  EXPECT_EQ(Read().status(),
            absl::InvalidArgumentError("parameter weight: shape [200000000], wanted [4]"));
  EXPECT_LT(peak() - before_kib, 100'000);
}

TEST_F(RepositoryTest, FollowsKubernetesLinks) {
  // A ConfigMap volume: the config is a link through ..data, which is exchanged at once.
  dir_.Write("m/..2026_1/config.textproto", RmsConfig(4));
  ASSERT_EQ(symlink("..2026_1", Path("m/..data").c_str()), 0);
  ASSERT_EQ(symlink("..data/config.textproto", Path(kConfig).c_str()), 0);
  dir_.Write(kParams, Weights(1));
  ASSERT_TRUE(Read().ok()) << Read().status();
  EXPECT_THAT(Repository({dir_.path()}).Versions("m").value(), ElementsAre(1));
  // Exchanged while it is read: read again.
  reads_ = 0;
  after_read_ = [this] {
    if (reads_ != 1) return;
    dir_.Write("m/..2026_2/config.textproto", RmsConfig(4));
    ASSERT_EQ(symlink("..2026_2", Path("m/..data_tmp").c_str()), 0);
    std::filesystem::rename(Path("m/..data_tmp"), Path("m/..data"));
  };
  EXPECT_TRUE(Read().ok());
  EXPECT_EQ(reads_, 2);
}

// Every part of a model's path, each as a link out of the root.
TEST_F(RepositoryTest, FollowsNoLinkOutOfTheRoot) {
  const TempFolder outside;
  outside.Write("m/config.textproto", RmsConfig(4));
  outside.Write("m/1/params.safetensors", Weights(9));
  outside.Write("secret", "hunter2:x:0:0");
  const std::string out = "../" + outside.path().substr(outside.path().rfind('/') + 1);
  for (const std::string& place :
       {std::string("m"), std::string(kConfig), std::string("m/1"), std::string(kParams)}) {
    const auto up = static_cast<std::size_t>(std::count(place.begin(), place.end(), '/'));
    std::string relative = out;
    for (std::size_t i = 0; i < up; ++i) relative.insert(0, "../");
    for (const std::string& target :
         {outside.path() + "/" + place, relative + "/" + place, outside.path() + "/secret"}) {
      std::filesystem::remove_all(Path("m"));
      dir_.Write(kConfig, RmsConfig(4));
      dir_.Write(kParams, Weights(1));
      std::filesystem::remove_all(Path(place));
      ASSERT_EQ(symlink(target.c_str(), Path(place).c_str()), 0);
      const absl::Status status = Read().status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << place << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("leads out")) << place;
      EXPECT_THAT(std::string(status.message()), Not(HasSubstr("hunter2"))) << place;
      EXPECT_THAT(std::string(status.message()), Not(HasSubstr(outside.path()))) << place;
    }
  }
}

// A link exchanged for a file and back, as fast as possible, beside reads.
TEST_F(RepositoryTest, NoExchangeOfLinksLeadsOut) {
  const TempFolder outside;
  outside.Write("params.safetensors", Weights(9));
  outside.Write("folder/params.safetensors", Weights(9));
  dir_.Write(kConfig, RmsConfig(4));
  dir_.Write(kParams, Weights(1));
  ASSERT_EQ(symlink((outside.path() + "/params.safetensors").c_str(), Path("m/file").c_str()), 0);
  ASSERT_EQ(symlink((outside.path() + "/folder").c_str(), Path("m/folder").c_str()), 0);
  std::atomic<bool> stop{false};
  std::thread exchanger([&] {
    while (!stop.load()) {
      for (const char* pair : {"m/1", "m/1/params.safetensors"}) {
        const std::string other = Path(std::string(pair) == "m/1" ? "m/folder" : "m/file");
        for (int i = 0; i < 2; ++i) {
          renameat2(AT_FDCWD, Path(pair).c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
        }
      }
    }
  });
  const Repository repository({dir_.path()});
  for (int i = 0; i < 40; ++i) {
    const auto files = repository.Read("m", 1, kMaxFileBytes);
    if (files.ok()) {
      EXPECT_EQ(WeightsOf(*files)[0], 1);
    }
  }
  stop.store(true);
  exchanger.join();
}

TEST_F(RepositoryTest, RefusesAFifoWithoutWaiting) {
  for (const char* place : {kConfig, kParams}) {
    dir_.Write(kConfig, RmsConfig(4));
    dir_.Write(kParams, Weights(1));
    std::filesystem::remove(Path(place));
    ASSERT_EQ(mkfifo(Path(place).c_str(), 0600), 0);
    EXPECT_THAT(std::string(Read().status().message()), HasSubstr("not a regular file")) << place;
    std::filesystem::remove(Path(place));
  }
}

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
}  // namespace normd::testing
