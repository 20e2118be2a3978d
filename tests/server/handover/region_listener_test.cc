#include "server/handover/region_listener.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/shared_region.h"
#include "tests/support/counting_metrics.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_page_locker.h"
#include "tests/support/pass_descriptors.h"

namespace normd {
namespace {

using client::SharedRegion;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kPage = 4096;

// Memory as a client makes it.
Descriptor Memory(std::int64_t bytes, int seals, unsigned flags = 0) {
  Descriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  EXPECT_TRUE(file.valid());
  EXPECT_EQ(ftruncate(file.get(), bytes), 0);
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return file;
}

class RegionListenerTest : public ::testing::Test {
 protected:
  RegionListenerTest() : RegionListenerTest(nullptr) {}
  explicit RegionListenerTest(PageLocks* page_locks)
      : registry_(
            {.limits = {.max_regions = 64, .max_owner_regions = 64}, .page_locks = page_locks},
            metrics_.regions, clock_) {
    Start();
  }
  ~RegionListenerTest() override {
    listener_.reset();
    std::filesystem::remove_all(folder_);
  }

  static std::string MakeFolder() {
    std::string folder =
        (std::filesystem::temp_directory_path() / "normd_handover_XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) std::abort();
    return folder;
  }
  void Start(const HandoverLimits& limits = {16, 64, 64}) {
    listener_.reset();
    auto listener = RegionListener::Start(
        {address_, limits}, registry_, metrics_.regions,
        [this](absl::string_view authorization) -> absl::StatusOr<std::string> {
          if (on_registration_) on_registration_();
          if (authorization == "Bearer wrong") return absl::UnauthenticatedError("nobody's token");
          return authorization.empty() ? "" : "alice";
        });
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }

  Descriptor Connect() const {
    sockaddr_un at = {};
    at.sun_family = AF_UNIX;
    path_.copy(at.sun_path, sizeof(at.sun_path) - 1);
    Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
    return socket;
  }
  static bool Send(const Descriptor& socket, std::string packet, const std::vector<int>& files) {
    return testing::PassDescriptors(socket.get(), std::move(packet), files) >= 0;
  }
  static std::optional<RegionReply> Receive(const Descriptor& socket) {
    std::array<char, kMaxRegionPacketBytes> bytes;
    const ssize_t size = recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (size <= 0) return std::nullopt;
    const auto reply =
        DecodeRegionReply(absl::string_view(bytes.data(), static_cast<std::size_t>(size)));
    EXPECT_TRUE(reply.ok()) << reply.status();
    return *reply;
  }
  // One packet with descriptors, and the reply to it; nullopt when the connection ends.
  static std::optional<RegionReply> Exchange(const Descriptor& socket, std::string packet,
                                             const std::vector<int>& files) {
    if (!Send(socket, std::move(packet), files)) return std::nullopt;
    return Receive(socket);
  }
  static std::optional<RegionReply> Register(const Descriptor& socket, int file,
                                             const std::string& authorization = "") {
    return Exchange(socket, EncodeRegionRequest({RegionRequest::Kind::kRegister, authorization}),
                    {file});
  }
  void ExpectRefused(int file, const std::string& text) {
    const Descriptor socket = Connect();
    const auto reply = Register(socket, file);
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->code, absl::StatusCode::kFailedPrecondition) << reply->text;
    EXPECT_THAT(reply->text, HasSubstr(text));
    EXPECT_EQ(metrics_.regions.mapped, 0);
  }
  void AwaitMapped(std::int64_t regions) {
    while (metrics_.regions.mapped != regions) std::this_thread::yield();
  }

  const std::string folder_ = MakeFolder();
  const std::string path_ = folder_ + "/regions.sock";
  const std::string address_ = "unix://" + path_;
  CountingMetrics metrics_;
  FakeClock clock_;
  RegionRegistry registry_;
  std::function<void()> on_registration_;  // On the listener's thread; set before Start.
  std::unique_ptr<RegionListener> listener_;
};

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
  while (registry_.Find("", name).ok()) std::this_thread::yield();
  // A client that found it before keeps it.
  EXPECT_EQ((*(*found)->Part(9'999, 1))[0], std::byte{7});
  found = absl::NotFoundError("");
  EXPECT_EQ(metrics_.regions.mapped, 0);
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
  CountingMetrics lock_metrics_;
  SteadyClock lock_clock_;
  PageLocks page_locks_{locker_, {}, lock_metrics_.regions, lock_clock_};
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
  while (registry_.Find("", sent).ok()) std::this_thread::yield();
  EXPECT_EQ(locker_.locked(), 1);
  std::memset((*used)->Part(0, kPage)->data(), 1, kPage);
  used = absl::NotFoundError("");
  AwaitMapped(0);
  EXPECT_EQ(locker_.locked(), 0);
  EXPECT_EQ(lock_metrics_.regions.locked_bytes, 0);
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
  while (metrics_.regions.connections != 0) std::this_thread::yield();
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

TEST_F(RegionListenerTest, RegionsHaveALimit) {
  const Descriptor socket = Connect();
  const Descriptor memory = Memory(kPage, F_SEAL_SHRINK);
  absl::StatusCode code = absl::StatusCode::kOk;
  int registered = 0;
  for (; code == absl::StatusCode::kOk && registered < 1000; ++registered) {
    code = Register(socket, memory.get())->code;
  }
  EXPECT_EQ(code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(registered, 65);
  EXPECT_EQ(metrics_.regions.mapped, 64);
}

TEST_F(RegionListenerTest, SilentConnectionsKeepNobodyOut) {
  Start({4, 64, 64});
  const Descriptor memory = Memory(kPage, F_SEAL_SHRINK);
  const Descriptor holder = Connect();
  const auto held = Register(holder, memory.get());
  ASSERT_TRUE(held.has_value());
  std::vector<Descriptor> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(Connect());
  const auto reply = Register(Connect(), memory.get());
  ASSERT_TRUE(reply.has_value()) << "a newcomer was kept out";
  EXPECT_EQ(reply->code, absl::StatusCode::kOk) << reply->text;
  EXPECT_TRUE(registry_.Find("", held->text).ok()) << "who holds a region never gives way";
  EXPECT_GE(metrics_.regions.connections_ended[static_cast<int>(HandoverEnding::kNoRegion)], 97);
  EXPECT_LE(metrics_.regions.connections, 6);
}

TEST_F(RegionListenerTest, WhoWasSilentLongestGivesWay) {
  Start({2, 64, 64});
  const Descriptor first = Connect();
  const Descriptor second = Connect();
  ASSERT_TRUE(Exchange(second, "x", {}).has_value());
  ASSERT_TRUE(Exchange(first, "x", {}).has_value());
  const Descriptor third = Connect();
  ASSERT_TRUE(Exchange(third, "x", {}).has_value());
  EXPECT_FALSE(Exchange(second, "x", {}).has_value());
  EXPECT_TRUE(Exchange(first, "x", {}).has_value());
}

TEST_F(RegionListenerTest, AProcessThatFillsThePlaceLosesItsOwnConnections) {
  Start({4, 64, 64});
  const Descriptor neighbour = Connect();
  ASSERT_TRUE(Exchange(neighbour, "x", {}).has_value());
  const pid_t child = fork();
  if (child == 0) {
    std::vector<Descriptor> silent;
    for (int i = 0; i < 100; ++i) silent.push_back(Connect());
    // The last one is there once it has a reply.
    _exit(Exchange(silent.back(), "x", {}).has_value() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(Register(neighbour, Memory(kPage, F_SEAL_SHRINK).get()).has_value())
      << "its connection gave way to another process's";
}

TEST_F(RegionListenerTest, ConnectionsWithRegionsLeaveRoomToOtherOwners) {
  Start({4, 3, 2});
  const Descriptor memory = Memory(kPage, F_SEAL_SHRINK);
  std::vector<Descriptor> sockets;
  const auto register_anew = [&](const std::string& authorization) {
    sockets.push_back(Connect());
    return Register(sockets.back(), memory.get(), authorization)->code;
  };
  EXPECT_EQ(register_anew("Bearer alices"), absl::StatusCode::kOk);
  EXPECT_EQ(register_anew("Bearer alices"), absl::StatusCode::kOk);
  EXPECT_EQ(Register(sockets[0], memory.get(), "Bearer alices")->code, absl::StatusCode::kOk);
  const auto refused = Register(Connect(), memory.get(), "Bearer alices");
  EXPECT_EQ(refused->code, absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused->text, HasSubstr("connections: 2 hold regions, 2 of them of this client's"));
  EXPECT_EQ(register_anew(""), absl::StatusCode::kOk);
  EXPECT_EQ(register_anew(""), absl::StatusCode::kResourceExhausted);
  sockets.erase(sockets.begin());
  AwaitMapped(2);
  EXPECT_EQ(register_anew(""), absl::StatusCode::kOk);
}

// The thread is kept busy until so many wait to be accepted, and then finds packets besides.
TEST_F(RegionListenerTest, AFloodOfConnectsHoldsUpNoPacket) {
  constexpr int kFlood = 120;
  int registrations = 0;
  std::promise<void> busy;
  std::promise<void> go_on;
  std::int64_t before_third = 0;
  on_registration_ = [&] {
    ++registrations;
    if (registrations == 1) {
      busy.set_value();
      go_on.get_future().wait();
    }
    if (registrations == 3) before_third = metrics_.regions.connections;
  };
  Start({1000, 64, 64});
  const Descriptor neighbour = Connect();
  const Descriptor memory = Memory(kPage, F_SEAL_SHRINK);
  ASSERT_TRUE(Send(neighbour, EncodeRegionRequest({}), {memory.get()}));
  busy.get_future().wait();
  std::vector<Descriptor> flood;
  for (int i = 0; i < kFlood; ++i) flood.push_back(Connect());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(Send(neighbour, EncodeRegionRequest({}), {memory.get()}));
  }
  go_on.set_value();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Receive(neighbour).has_value());
  EXPECT_LE(before_third, 1 + 64) << "all were accepted before the next packet";
}

// A TCP connection whose last close(2) waits, for an hour if nobody ends it.
class LingeringSocket {
 public:
  LingeringSocket() {
    const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    auto* const generic = reinterpret_cast<sockaddr*>(&at);
    EXPECT_EQ(bind(listener.get(), generic, size), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), generic, &size), 0);
    mine.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(mine.get(), generic, size), 0);
    peer.Reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string unsent(1 << 16, 'x');
    while (send(mine.get(), unsent.data(), unsent.size(), MSG_DONTWAIT) > 0) {
    }
    const linger hour = {1, 3600};
    EXPECT_EQ(setsockopt(mine.get(), SOL_SOCKET, SO_LINGER, &hour, sizeof(hour)), 0);
  }
  Descriptor mine;
  Descriptor peer;  // A waiting close(2) continues when it is closed.
};

class PassedSocketTest : public RegionListenerTest {
 protected:
  // Sends something while the listener's thread is busy, so that the last copies of the descriptors
  // in it are in the packets when it goes on.
  void SendUnseen(const std::function<void(const Descriptor& attacker)>& send) {
    std::promise<void> busy;
    std::promise<void> go_on;
    on_registration_ = [&, first = true]() mutable {
      if (!std::exchange(first, false)) return;
      busy.set_value();
      go_on.get_future().wait();
    };
    Start();
    Descriptor attacker = Connect();
    ASSERT_TRUE(Exchange(attacker, "x", {}).has_value());
    neighbour_ = Connect();
    ASSERT_TRUE(Send(neighbour_, EncodeRegionRequest({}), {memory_.get()}));
    busy.get_future().wait();
    send(attacker);
    attacker.Reset();
    go_on.set_value();
    ASSERT_TRUE(Receive(neighbour_).has_value());
  }
  void ExpectNeighbourIsServed() {
    const auto reply = Register(neighbour_, memory_.get());
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->code, absl::StatusCode::kOk) << reply->text;
  }
  // A unix socket in which the lingering one lies unread.
  static Descriptor Nested(LingeringSocket& lingering) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const Descriptor sender(ends[0]);
    EXPECT_TRUE(Send(sender, "x", {lingering.mine.get()}));
    lingering.mine.Reset();
    return Descriptor(ends[1]);
  }

  const Descriptor memory_ = Memory(kPage, F_SEAL_SHRINK);
  Descriptor neighbour_;
};

TEST_F(PassedSocketTest, HoldsUpNobody) {
  for (const std::size_t others : {0, 3, 4, 252}) {
    LingeringSocket lingering;
    SendUnseen([&](const Descriptor& attacker) {
      std::vector<int> files(others, memory_.get());
      files.push_back(lingering.mine.get());
      ASSERT_TRUE(Send(attacker, EncodeRegionRequest({}), files)) << others;
      lingering.mine.Reset();
    });
    ExpectNeighbourIsServed();
    listener_.reset();
  }
}

TEST_F(PassedSocketTest, HoldsUpNobodyUnreadWhenItsConnectionEnds) {
  LingeringSocket lingering;
  SendUnseen([&](const Descriptor& attacker) {
    ASSERT_TRUE(Send(attacker, "", {}));  // Ends the connection.
    ASSERT_TRUE(Send(attacker, EncodeRegionRequest({}), {lingering.mine.get()}));
    lingering.mine.Reset();
  });
  ExpectNeighbourIsServed();
  listener_.reset();
}

TEST_F(PassedSocketTest, HoldsUpNobodyInsideAnother) {
  LingeringSocket lingering;
  SendUnseen([&](const Descriptor& attacker) {
    const Descriptor nested = Nested(lingering);
    ASSERT_TRUE(Send(attacker, EncodeRegionRequest({}), {nested.get()}));
  });
  ExpectNeighbourIsServed();
  listener_.reset();  // While it still lingers.
}

TEST_F(PassedSocketTest, ManyThatLingerAreBoundedAndHoldUpNoStop) {
  for (const bool stop : {true, false}) {
    LingeringSocket lingering;
    SendUnseen([&](const Descriptor& attacker) {
      const Descriptor nested = Nested(lingering);
      ASSERT_TRUE(Send(attacker, EncodeRegionRequest({}), {nested.get()}));
    });
    const Descriptor null(open("/dev/null", O_RDWR | O_CLOEXEC));
    const std::vector<int> many(kMaxUnclosed + 1, null.get());
    EXPECT_EQ(Exchange(neighbour_, EncodeRegionRequest({}), many)->code,
              absl::StatusCode::kInvalidArgument);
    // From here on nobody is served before the lingering one is closed.
    ASSERT_TRUE(Send(neighbour_, EncodeRegionRequest({}), {memory_.get()}));
    if (stop) {
      listener_.reset();
      continue;
    }
    lingering.peer.Reset();
    EXPECT_EQ(Receive(neighbour_)->code, absl::StatusCode::kOk);
  }
}

TEST_F(RegionListenerTest, ManyClientsComeAndGo) {
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        const auto region = SharedRegion::Create(address_, 3 * kPage);
        ASSERT_TRUE(region.ok()) << region.status();
        EXPECT_TRUE(registry_.Find("", (*region)->name()).ok());
      }
    });
  }
  for (std::thread& client : clients) client.join();
  AwaitMapped(0);
}

TEST_F(RegionListenerTest, TheSocketIsItsOwnersAndGoesWithTheListener) {
  struct stat found = {};
  ASSERT_EQ(stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600U);
  EXPECT_EQ(RegionListener::Start({address_}, registry_, metrics_.regions, nullptr).status().code(),
            absl::StatusCode::kUnavailable);
  const Descriptor socket = Connect();
  const auto reply = Register(socket, Memory(kPage, F_SEAL_SHRINK).get());
  ASSERT_TRUE(reply.has_value());
  listener_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_EQ(metrics_.regions.mapped, 0);
  EXPECT_EQ(SharedRegion::Create(address_, kPage).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(SharedRegion::Create("127.0.0.1:1", kPage).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace normd
