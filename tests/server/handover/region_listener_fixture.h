// What the tests of the listener share: a listener, and connections to it.

#ifndef NORMD_TESTS_SERVER_HANDOVER_REGION_LISTENER_FIXTURE_H_
#define NORMD_TESTS_SERVER_HANDOVER_REGION_LISTENER_FIXTURE_H_

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/handover/region_listener.h"
#include "tests/support/fake_clock.h"
#include "tests/support/metric_value.h"
#include "tests/support/pass_descriptors.h"
#include "tests/support/temp_folder.h"
#include "tests/support/threads.h"

namespace normd {

inline constexpr std::int64_t kPage = 4096;

// Memory as a client makes it.
inline Descriptor Memory(std::int64_t bytes, int seals, unsigned flags = 0) {
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
            metrics_.ForRegions(), clock_) {
    Start();
  }
  ~RegionListenerTest() override { listener_.reset(); }

  void Start(const HandoverLimits& limits = {16, 64, 64}) {
    listener_.reset();
    auto listener = RegionListener::Start(
        {address_, limits}, registry_, metrics_.ForRegions(),
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
    EXPECT_THAT(reply->text, ::testing::HasSubstr(text));
    EXPECT_EQ(MetricValue(metrics_, families::kSharedRegions), 0);
  }
  void AwaitMapped(std::int64_t regions) {
    WaitUntil([&] { return MetricValue(metrics_, families::kSharedRegions) == regions; });
  }

  const testing::TempFolder folder_;
  const std::string path_ = folder_.File("regions.sock");
  const std::string address_ = "unix://" + path_;
  Metrics metrics_;
  FakeClock clock_;
  RegionRegistry registry_;
  std::function<void()> on_registration_;  // On the listener's thread; set before Start.
  std::unique_ptr<RegionListener> listener_;
};

}  // namespace normd

#endif  // NORMD_TESTS_SERVER_HANDOVER_REGION_LISTENER_FIXTURE_H_
