// Memory that comes as a descriptor: who has it, what is refused, and what stays of it.

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <random>

#include "client/shared_region.h"
#include "tests/server/handover/region_listener_fixture.h"
#include "tests/support/failing_allocations.h"
#include "tests/support/fake_page_locker.h"

namespace normd {
namespace {

using client::SharedRegion;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(RegionListenerTest, ARegionIsThereAsLongAsItsConnection) {
  auto region = SharedRegion::Create(address_, 10'000);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_THAT((*region)->name(), StartsWith("fd-"));
  EXPECT_EQ((*region)->name().size(), 35U);
  auto found = registry_.Find("", (*region)->name());
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE((*found)->facts().writable);
  (*region)->data()[9'999] = std::byte{7};
  EXPECT_EQ((*(*found)->Part(9'999, 1))[0], std::byte{7});
  const std::string name = (*region)->name();
  region->reset();
  WaitUntil([&] { return !registry_.Find("", name).ok(); });
  // A client that found it before keeps it.
  EXPECT_EQ((*(*found)->Part(9'999, 1))[0], std::byte{7});
  found = absl::NotFoundError("");
  EXPECT_EQ(MetricValue(metrics_, families::kSharedRegions), 0);
}

TEST_F(RegionListenerTest, ItsPartsLieInItAndHoldIt) {
  auto region = SharedRegion::Create(address_, 1000);
  ASSERT_TRUE(region.ok()) << region.status();
  const auto shape = Shape::Create({2, 25});
  auto input = (*region)->Input("x", norm::DType::kFloat32, *shape, 100);
  ASSERT_TRUE(input.ok()) << input.status();
  EXPECT_EQ(input->region, (*region)->name());
  EXPECT_EQ(input->region_offset, 100);
  EXPECT_EQ(input->tensor.bytes.data(), (*region)->data() + 100);
  EXPECT_EQ(input->tensor.bytes.size(), 200U);
  auto output = (*region)->Output("y", 300, 700);
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(output->bytes.data(), (*region)->data() + 300);
  constexpr std::size_t kMost = ~std::size_t{0};
  for (const auto& [offset, bytes] : {std::pair<std::size_t, std::size_t>{300, 701},
                                      {1001, 0},
                                      {kMost, 1},
                                      {1, kMost},
                                      {kMost, kMost}}) {
    EXPECT_EQ((*region)->Output("y", offset, bytes).status().code(), absl::StatusCode::kOutOfRange);
  }
  EXPECT_EQ((*region)->Input("x", norm::DType::kFloat32, *shape, 801).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(SharedRegion::Create(address_, 0).status().code(), absl::StatusCode::kInvalidArgument);
  // The region is the server's as long as a request may use it.
  region->reset();
  input = absl::NotFoundError("");
  EXPECT_TRUE(registry_.Find("", output->region).ok());
  output->bytes[0] = std::byte{1};
  output = absl::NotFoundError("");
  AwaitMapped(0);
}

TEST_F(RegionListenerTest, AConnectionWithoutMemoryForItsReplyEndsAlone) {
  std::optional<FailingAllocations> failing;
  on_registration_ = [&failing] {
    if (!failing.has_value()) failing.emplace(0, /*fail=*/2);  // The region's name, and the reply.
  };
  const Descriptor memory = Memory(kPage, F_SEAL_SHRINK);
  EXPECT_FALSE(Register(Connect(), memory.get()).has_value());
  const Descriptor second = Connect();
  const auto reply = Register(second, memory.get());
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->code, absl::StatusCode::kOk) << reply->text;
}

TEST_F(RegionListenerTest, AKilledClientLeavesNothing) {
  const pid_t child = fork();
  if (child == 0) {
    const auto region = SharedRegion::Create(address_, kPage);
    if (region.ok()) pause();
    _exit(1);
  }
  AwaitMapped(1);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  AwaitMapped(0);
}

// Before the registry, so that it outlives its regions.
struct WithPageLocks {
  testing::FakePageLocker locker_;
  Metrics lock_metrics_;
  SteadyClock lock_clock_;
  PageLocks page_locks_{locker_, {}, lock_metrics_.ForRegions(), lock_clock_};
};

class LockedRegionListenerTest : public WithPageLocks, public RegionListenerTest {
 protected:
  LockedRegionListenerTest() : RegionListenerTest(&page_locks_) {}
};

// FakePageLocker ends the test when what is locked is unmapped.
TEST_F(LockedRegionListenerTest, AKilledClientsRegionIsUnlockedBehindItsLastRequest) {
  int names[2];
  ASSERT_EQ(pipe(names), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto region = SharedRegion::Create(address_, kPage);
    if (region.ok()) {
      const std::string& name = (*region)->name();
      if (write(names[1], name.data(), name.size()) > 0) pause();
    }
    _exit(1);
  }
  char name[64];
  const ssize_t bytes = read(names[0], name, sizeof(name));
  ASSERT_GT(bytes, 0);
  const absl::string_view sent(name, static_cast<std::size_t>(bytes));
  locker_.WaitForCalls(1);
  auto used = registry_.Find("", sent);
  ASSERT_TRUE(used.ok()) << used.status();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  WaitUntil([&] { return !registry_.Find("", sent).ok(); });
  EXPECT_EQ(locker_.locked(), 1);
  std::memset((*used)->Part(0, kPage)->data(), 1, kPage);
  used = absl::NotFoundError("");
  AwaitMapped(0);
  EXPECT_EQ(locker_.locked(), 0);
  EXPECT_EQ(MetricValue(lock_metrics_, families::kSharedLockedBytes), 0);
  for (const int end : names) close(end);
}

// A client that has its reply sends requests, and devices that are busy hold up the driver's lock.
TEST_F(LockedRegionListenerTest, AReplyWaitsForThePagesAndHoldsUpNobody) {
  locker_.Hold();
  const Descriptor file = Memory(kPage, F_SEAL_SHRINK | F_SEAL_GROW);
  const Descriptor waiting = Connect();
  const std::string packet = EncodeRegionRequest({RegionRequest::Kind::kRegister, ""});
  ASSERT_TRUE(Send(waiting, packet, {file.get()}));
  locker_.WaitForHeld();
  const Descriptor other = Connect();
  EXPECT_EQ(Exchange(other, "garbage", {})->code, absl::StatusCode::kInvalidArgument);
  char byte = 0;
  EXPECT_EQ(recv(waiting.get(), &byte, 1, MSG_DONTWAIT), -1);
  // What it sends meanwhile is read after its reply.
  ASSERT_TRUE(Send(waiting, "garbage", {}));
  EXPECT_EQ(Exchange(other, "garbage", {})->code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(recv(waiting.get(), &byte, 1, MSG_DONTWAIT), -1);
  locker_.Release();
  const auto reply = Receive(waiting);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->code, absl::StatusCode::kOk) << reply->text;
  EXPECT_EQ(registry_.Find("", reply->text).value()->place().kind, MemoryKind::kPinned);
  EXPECT_EQ(Receive(waiting)->code, absl::StatusCode::kInvalidArgument);
}

TEST_F(LockedRegionListenerTest, AClientThatLeavesWhileItWaitsLeavesNothing) {
  locker_.Hold();
  const Descriptor file = Memory(kPage, F_SEAL_SHRINK | F_SEAL_GROW);
  {
    const Descriptor waiting = Connect();
    ASSERT_TRUE(
        Send(waiting, EncodeRegionRequest({RegionRequest::Kind::kRegister, ""}), {file.get()}));
    locker_.WaitForHeld();
  }
  WaitUntil([&] { return MetricValue(metrics_, families::kSharedConnections) == 0; });
  locker_.Release();
  AwaitMapped(0);
  EXPECT_EQ(locker_.locked(), 0);
}

TEST_F(LockedRegionListenerTest, TheStopWaitsForNoPages) {
  const Descriptor file = Memory(kPage, F_SEAL_SHRINK | F_SEAL_GROW);
  const std::string packet = EncodeRegionRequest({RegionRequest::Kind::kRegister, ""});
  for (int i = 0; i < 200; ++i) {
    const Descriptor socket = Connect();
    ASSERT_TRUE(Send(socket, packet, {file.get()}));
    Start();  // Stops the one before, at any moment of the registration.
  }
  AwaitMapped(0);
  locker_.Hold();
  const Descriptor waiting = Connect();
  ASSERT_TRUE(Send(waiting, packet, {file.get()}));
  locker_.WaitForHeld();
  listener_.reset();
  locker_.Release();
  AwaitMapped(0);
}

TEST_F(RegionListenerTest, MemoryThatCanShrinkIsRefused) {
  ExpectRefused(Memory(kPage, 0).get(), "wanted it sealed with F_SEAL_SHRINK");
  ExpectRefused(Memory(kPage, F_SEAL_GROW).get(), "F_SEAL_SHRINK");
  EXPECT_EQ(ftruncate(Memory(kPage, F_SEAL_SHRINK).get(), 0), -1);
}

TEST_F(RegionListenerTest, GarbageForAHandleIsRefused) {
  ExpectRefused(Descriptor(open("/dev/null", O_RDWR | O_CLOEXEC)).get(), "no memory of memfd");
  ExpectRefused(Descriptor(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)).get(), "no memory");
  ExpectRefused(Descriptor(open("/", O_RDONLY | O_CLOEXEC)).get(), "no memory");
  ExpectRefused(Descriptor(socket(AF_UNIX, SOCK_STREAM, 0)).get(), "no memory");
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ExpectRefused(ends[0], "no memory");
  close(ends[0]);
  close(ends[1]);
  ExpectRefused(Memory(0, F_SEAL_SHRINK).get(), "memory of 0 bytes");
}

TEST_F(RegionListenerTest, WhatIsSealedAgainstWritingIsForReadingAlone) {
  for (const int seal : {F_SEAL_WRITE, F_SEAL_FUTURE_WRITE}) {
    const Descriptor socket = Connect();
    const auto reply = Register(socket, Memory(kPage, F_SEAL_SHRINK | seal).get());
    ASSERT_TRUE(reply.has_value());
    ASSERT_EQ(reply->code, absl::StatusCode::kOk) << reply->text;
    EXPECT_EQ(reply->bytes, kPage);
    EXPECT_FALSE((*registry_.Find("", reply->text))->facts().writable);
  }
}

TEST_F(RegionListenerTest, AnIdentitysRegionIsItsOwn) {
  const auto region = SharedRegion::Create(address_, kPage, "alices");
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_TRUE(registry_.Find("alice", (*region)->name()).ok());
  EXPECT_FALSE(registry_.Find("", (*region)->name()).ok());
  EXPECT_EQ(SharedRegion::Create(address_, kPage, "wrong").status().code(),
            absl::StatusCode::kUnauthenticated);
}

TEST_F(RegionListenerTest, UnregisteringRefusesWhatIsInUseAndWhatIsAnothers) {
  const Descriptor socket = Connect();
  const Descriptor other = Connect();
  const auto reply = Register(socket, Memory(kPage, F_SEAL_SHRINK).get());
  ASSERT_TRUE(reply.has_value());
  const std::string packet = EncodeRegionRequest({RegionRequest::Kind::kUnregister, reply->text});
  EXPECT_EQ(Exchange(other, packet, {})->code, absl::StatusCode::kNotFound);
  auto used = registry_.Find("", reply->text);
  EXPECT_EQ(Exchange(socket, packet, {})->code, absl::StatusCode::kFailedPrecondition);
  used = absl::NotFoundError("");
  EXPECT_EQ(Exchange(socket, packet, {})->code, absl::StatusCode::kOk);
  EXPECT_EQ(Exchange(socket, packet, {})->code, absl::StatusCode::kNotFound);
}

TEST_F(RegionListenerTest, PacketsThatAreNoneLeaveTheConnectionAndNoDescriptor) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const Descriptor memory = Memory(kPage, F_SEAL_SHRINK);
  const Descriptor socket = Connect();
  ASSERT_TRUE(Exchange(socket, "x", {}).has_value());
  const auto before = descriptors();
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string packet = EncodeRegionRequest({});
    for (int change = 0; change < 3; ++change) {
      packet[random() % 16] = static_cast<char>(random());
    }
    packet.resize(1 + random() % 20);
    const std::vector<int> files(random() % 7, memory.get());
    const auto reply = Exchange(socket, packet, files);
    ASSERT_TRUE(reply.has_value());
    EXPECT_NE(reply->code, absl::StatusCode::kOk) << "a packet with another beginning";
  }
  const auto two = Exchange(socket, EncodeRegionRequest({}), {memory.get(), memory.get()});
  EXPECT_EQ(two->code, absl::StatusCode::kInvalidArgument);
  const auto none = Exchange(socket, EncodeRegionRequest({}), {});
  EXPECT_THAT(none->text, HasSubstr("descriptors: 0, wanted one"));
  const auto longest = Exchange(socket, std::string(kMaxRegionPacketBytes + 1, 'x'), {});
  EXPECT_EQ(longest->code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Register(socket, memory.get())->code, absl::StatusCode::kOk);
  EXPECT_EQ(descriptors(), before) << "the mapping needs none";
}

TEST_F(RegionListenerTest, ManyClientsComeAndGo) {
  RunThreads(4, [&](int) {
    for (int round = 0; round < 200; ++round) {
      const auto region = SharedRegion::Create(address_, 3 * kPage);
      ASSERT_TRUE(region.ok()) << region.status();
      EXPECT_TRUE(registry_.Find("", (*region)->name()).ok());
    }
  });
  AwaitMapped(0);
}

TEST_F(RegionListenerTest, TheSocketIsItsOwnersAndGoesWithTheListener) {
  struct stat found = {};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600U);
  EXPECT_EQ(
      RegionListener::Start({address_}, registry_, metrics_.ForRegions(), nullptr).status().code(),
      absl::StatusCode::kUnavailable);
  const Descriptor socket = Connect();
  const auto reply = Register(socket, Memory(kPage, F_SEAL_SHRINK).get());
  ASSERT_TRUE(reply.has_value());
  listener_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(MetricValue(metrics_, families::kSharedRegions), 0);
  EXPECT_EQ(SharedRegion::Create(address_, kPage).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(SharedRegion::Create("127.0.0.1:1", kPage).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace normd
