#include "server/regions/fault_guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "tests/server/regions/shared_file.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

constexpr std::size_t kBytes = 16 * kPage;

// The server's own mapping of a client's file, guarded.
class Guarded {
 public:
  explicit Guarded(const SharedFile& file)
      : data_(static_cast<std::byte*>(
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor(), 0))),
        guard_(std::make_unique<FaultGuard>(data_, kBytes)) {}
  ~Guarded() {
    guard_.reset();
    munmap(data_, kBytes);
  }
  std::byte* data() const { return data_; }
  bool broken() const { return guard_->broken(); }

 private:
  std::byte* const data_;
  std::unique_ptr<FaultGuard> guard_;
};

TEST(FaultGuardTest, AWholeFileIsReadAndWritten) {
  const SharedFile file(kBytes);
  const Guarded guarded(file);
  std::memset(guarded.data(), 7, kBytes);
  EXPECT_EQ(file.data()[kBytes - 1], std::byte{7});
  EXPECT_FALSE(guarded.broken());
}

TEST(FaultGuardTest, ReadingAShrunkFileGivesZeros) {
  SharedFile file(kBytes);
  const Guarded guarded(file);
  std::memset(guarded.data(), 7, kBytes);
  file.Resize(kPage);
  EXPECT_TRUE(std::all_of(guarded.data() + kPage, guarded.data() + kBytes,
                          [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_TRUE(guarded.broken());
}

TEST(FaultGuardTest, WritingAShrunkFileChangesMemoryOfTheProcessAlone) {
  SharedFile file(kBytes);
  const Guarded guarded(file);
  file.Resize(0);
  std::memset(guarded.data(), 7, kBytes);
  EXPECT_TRUE(guarded.broken());
  EXPECT_EQ(guarded.data()[kBytes - 1], std::byte{7});
  file.Resize(kBytes);
  EXPECT_EQ(file.data()[kBytes - 1], std::byte{0});
}

TEST(FaultGuardTest, ABrokenRangeLeavesOthersAlone) {
  SharedFile file(kBytes);
  const SharedFile other_file(kBytes);
  const Guarded before(other_file);
  const Guarded guarded(file);
  const Guarded after(other_file);
  std::memset(before.data(), 5, kBytes);
  file.Resize(0);
  EXPECT_EQ(guarded.data()[0], std::byte{0});
  EXPECT_TRUE(guarded.broken());
  EXPECT_FALSE(before.broken());
  EXPECT_FALSE(after.broken());
  EXPECT_EQ(after.data()[kBytes - 1], std::byte{5});
}

// Ranges come and go on other threads while files are shortened under those in use.
TEST(FaultGuardTest, ThreadsThatFaultAtOnceAllGoOn) {
#ifdef NORMD_SANITIZED
  GTEST_SKIP() << "ThreadSanitizer takes pages that are exchanged for a write to them";
#endif
  constexpr int kThreads = 4;
  constexpr int kRounds = 200;
  RunThreads(kThreads, [](int) {
    for (int round = 0; round < kRounds; ++round) {
      SharedFile file(kBytes);
      const Guarded guarded(file);
      file.Resize(kPage);
      std::thread second([&] { std::memset(guarded.data(), 1, kBytes); });
      std::memset(guarded.data(), 2, kBytes);
      second.join();
      EXPECT_TRUE(guarded.broken());
    }
  });
}

// A sanitizer's handler, to which the guard hands on what is not its own, reports it and exits.
bool EndedByABusError(int status) {
#ifdef NORMD_SANITIZED
  return WIFEXITED(status) && WEXITSTATUS(status) != 0;
#else
  return ::testing::KilledBySignal(SIGBUS)(status);
#endif
}

using FaultGuardDeathTest = ::testing::Test;

TEST(FaultGuardDeathTest, ABusErrorElsewhereEndsTheProcess) {
  const SharedFile guarded_file(kBytes);
  const Guarded guarded(guarded_file);
  EXPECT_EXIT(
      {
        SharedFile file(kBytes);
        file.Resize(0);
        file.data()[0] = std::byte{1};
      },
      EndedByABusError, "");
  EXPECT_EXIT(raise(SIGBUS), EndedByABusError, "");
}

TEST(FaultGuardDeathTest, ARangeThatIsNoLongerGuardedIsElsewhere) {
  EXPECT_EXIT(
      {
        SharedFile file(kBytes);
        { const FaultGuard guard(file.data(), kBytes); }
        file.Resize(0);
        file.data()[0] = std::byte{1};
      },
      EndedByABusError, "");
}

}  // namespace
}  // namespace normd::testing
