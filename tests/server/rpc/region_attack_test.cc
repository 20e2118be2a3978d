// What a client may do with shared memory to harm the server or others: a test for each attack of
// docs/shared_memory.md.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/infer/infer_regions.h"
#include "tests/server/rpc/region_fixture.h"
#include "tests/support/threads.h"

namespace normd::testing {
namespace {

using ::testing::HasSubstr;
using Code = grpc::StatusCode;

constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();

class RegionAttackTest : public RegionFixture {
 protected:
  using RegionFixture::RegionFixture;
};

TEST_F(RegionAttackTest, OffsetPlusSizeOverflowsAtRegistration) {
  for (const auto& [offset, bytes] : {std::pair<std::uint64_t, std::uint64_t>{kMost, 1},
                                      {1, kMost},
                                      {kMost, kMost},
                                      {kMost - 4094, 4096}}) {
    const grpc::Status status = Register(file_.key(), offset, bytes);
    EXPECT_TRUE(status.error_code() == Code::OUT_OF_RANGE ||
                status.error_code() == Code::RESOURCE_EXHAUSTED)
        << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("wanted at most"));
  }
  for (const auto& [offset, bytes] : {std::pair<std::uint64_t, std::uint64_t>{kMost + 1, 1},
                                      {0, kMost + 1},
                                      {~std::uint64_t{0}, 2}}) {
    const grpc::Status status = Register(file_.key(), offset, bytes);
    EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("wanted at most 9223372036854775807"));
  }
}

TEST_F(RegionAttackTest, OffsetPlusSizeOverflowsInARequest) {
  RegisterOk(file_, kFileBytes);
  constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t offset :
       {std::int64_t{kFileBytes} - kTensorBytes + 4, std::int64_t{kFileBytes}, kEnd,
        kEnd - kTensorBytes + 1, kEnd / 4 * 4}) {
    ExpectRefused(InRegions({"r", offset}, {}), Code::OUT_OF_RANGE,
                  absl::StrCat("inputs[0].shared_memory: region \"r\": byte_size ", kTensorBytes,
                               " from offset ", offset));
    ExpectRefused(InRegions({}, {"r", offset}), Code::OUT_OF_RANGE, "outputs[0].shared_memory");
  }
  ExpectRefused(InRegions({}, {"r", kY, kEnd}), Code::OUT_OF_RANGE, "a part of its 65536 bytes");
}

TEST_F(RegionAttackTest, NegativeOffsetsAndSizes) {
  RegisterOk(file_, kFileBytes);
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  for (const std::int64_t number : {std::int64_t{-1}, -std::int64_t{kTensorBytes}, kLeast}) {
    ExpectRefused(InRegions({"r", number}, {}), Code::INVALID_ARGUMENT,
                  absl::StrCat("inputs[0].shared_memory: offset ", number, ", wanted 0 or more"));
    ExpectRefused(InRegions({}, {"r", number}), Code::INVALID_ARGUMENT,
                  absl::StrCat("outputs[0].shared_memory: offset ", number));
    ExpectRefused(InRegions({"r", 0, number}, {}), Code::INVALID_ARGUMENT, "byte_size");
    ExpectRefused(InRegions({}, {"r", kY, number}), Code::INVALID_ARGUMENT,
                  absl::StrCat("outputs[0].shared_memory: byte_size ", number));
  }
}

TEST_F(RegionAttackTest, RegionsOfNamesThatNobodyHas) {
  RegisterOk(file_, kFileBytes);
  const std::string longest(1024, 'n');
  for (const char* name : {"", "s", "R", "r/", "../r", "\x01", longest.c_str()}) {
    ExpectRefused(InRegions({name}, {"r", kY}), Code::NOT_FOUND, "is not registered");
    ExpectRefused(InRegions({"r"}, {name, kY}), Code::NOT_FOUND, "is not registered");
  }
}

TEST_F(RegionAttackTest, DataBesideSharedMemory) {
  RegisterOk(file_, kFileBytes);
  v1::NormalizeRequest request = ToNormalize(InRegions({}, {"r", kY}));
  request.mutable_inputs(0)->set_data("data");
  const grpc::Status status = Normalize(request);
  EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "data: 4 bytes beside shared memory, wanted none");
  // In that protocol's own words.
  inference::ModelInferRequest infer = InRegions({}, {"r", kY});
  infer.mutable_inputs(0)->mutable_contents()->add_fp32_contents(1);
  EXPECT_EQ(Infer(infer).error_message(), "contents: 4 bytes beside shared memory, wanted none");
}

TEST_F(RegionAttackTest, SizeZero) {
  const grpc::Status status = Register(file_.key(), 0, 0);
  EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("byte_size: 0, wanted at least 1"));
  RegisterOk(file_, kFileBytes);
  ExpectRefused(InRegions({"r", 0, 0}, {}), Code::INVALID_ARGUMENT, "byte_size 0, wanted 16896");
  ExpectRefused(InRegions({}, {"r", kY, 0}), Code::INVALID_ARGUMENT,
                "byte_size 0, wanted at least the 16896");
}

TEST_F(RegionAttackTest, RegionShorterThanItSays) {
  const grpc::Status status = Register(file_.key(), 1, kFileBytes);
  EXPECT_EQ(status.error_code(), Code::OUT_OF_RANGE);
  EXPECT_THAT(status.error_message(), HasSubstr("65536 bytes that the file has"));
  RegisterOk(file_, kTensorBytes - 1);
  ExpectRefused(InRegions({}, {}), Code::OUT_OF_RANGE, "a part of its 16895 bytes");
  ExpectRefused(InRegions({"r", 0, kTensorBytes - 1}, {}), Code::INVALID_ARGUMENT,
                "shared_memory: byte_size 16895, wanted 16896 for shape [2, 64, 33] of float32");
}

// No SIGBUS ends the server, and the client hears that its request means nothing.
TEST_F(RegionAttackTest, ShrunkWhileInUse) {
  for (const bool shrink_input : {true, false}) {
    SharedFile x(kFileBytes);
    SharedFile y(kFileBytes);
    RegisterOk(x, kFileBytes, "x");
    RegisterOk(y, kFileBytes, "y");
    StalledInfer call(*this, InRegions({"x"}, {"y"}));
    (shrink_input ? x : y).Resize(0);
    const grpc::Status status = call.Finish();
    EXPECT_EQ(status.error_code(), Code::FAILED_PRECONDITION) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("its memory was taken away"));
    // Also after the file is as long again.
    (shrink_input ? x : y).Resize(kFileBytes);
    ExpectRefused(InRegions({"x"}, {"y"}), Code::FAILED_PRECONDITION, "registered anew");
    ASSERT_TRUE(Unregister("x").ok() && Unregister("y").ok());
    RegisterOk(x, kFileBytes, "x");
    RegisterOk(y, kFileBytes, "y");
    EXPECT_TRUE(Infer(InRegions({"x"}, {"y"})).ok());
    ASSERT_TRUE(Unregister("").ok());
  }
  EXPECT_EQ(server_.Metric("normd_shared_regions_broken_total"), 2);
}

TEST_F(RegionAttackTest, ShrunkAndGrownAllTheTime) {
  SharedFile x(kFileBytes);
  std::atomic<bool> stop{false};
  std::thread attacker([&] {
    while (!stop) {
      x.Resize(0);
      x.Resize(kFileBytes);
    }
  });
  const std::string expected = Expected(Plain());
  for (int i = 0; i < 300; ++i) {
    const grpc::Status registered = Register(x.key(), 0, kFileBytes, "x");
    if (registered.ok()) {
      const grpc::Status status = Infer(InRegions({"x"}, {"x", kY}));
      EXPECT_TRUE(status.ok() || status.error_code() == Code::FAILED_PRECONDITION)
          << status.error_message();
      EXPECT_TRUE(Unregister("x").ok());
    } else {
      EXPECT_EQ(registered.error_code(), Code::OUT_OF_RANGE) << registered.error_message();
    }
    EXPECT_EQ(Expected(Plain()), expected) << "others are served as ever";
  }
  stop = true;
  attacker.join();
}

TEST_F(RegionAttackTest, ReplacedWhileInUse) {
  auto old = std::make_unique<SharedFile>(kFileBytes);
  const std::string key = old->key();
  WriteInput(*old, Plain());
  RegisterOk(*old, kFileBytes);
  shm_unlink(key.c_str());
  const Descriptor other(shm_open(key.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
  ASSERT_TRUE(other.valid());
  ASSERT_EQ(ftruncate(other.get(), 1), 0);
  // The region is the file that was registered.
  ASSERT_TRUE(Infer(InRegions({}, {"r", kY})).ok());
  EXPECT_EQ(OutputIn(*old, kY), Expected(Plain()));
}

TEST_F(RegionAttackTest, UnregisteredWhileInUse) {
  WriteInput(file_, Plain());
  RegisterOk(file_, kFileBytes);
  const std::string expected = Expected(Plain());
  StalledInfer call(*this, InRegions({}, {"r", kY}));
  const grpc::Status refused = Unregister("r", "refuse");
  EXPECT_EQ(refused.error_code(), Code::FAILED_PRECONDITION) << refused.error_message();
  EXPECT_EQ(Unregister("r", "perhaps").error_code(), Code::INVALID_ARGUMENT);
  EXPECT_TRUE(Unregister("r", "finish").ok());
  ExpectRefused(InRegions({}, {"r", kY}), Code::NOT_FOUND, "region \"r\" is not registered");
  call.FinishOk();
  EXPECT_EQ(OutputIn(file_, kY), expected);
  EXPECT_EQ(NamedRegions(), 0);
}

// Then nothing is written any more, and meanwhile nobody new finds the region.
TEST_F(RegionAttackTest, UnregisteringMayWaitForWhatIsInside) {
  for (const char* name : {"r", ""}) {
    WriteInput(file_, Plain());
    RegisterOk(file_, kFileBytes);
    StalledInfer call(*this, InRegions({}, {"r", kY}));
    std::atomic<bool> unregistered{false};
    std::thread waiter([&] {
      const grpc::Status ended = Unregister(name, "wait");
      EXPECT_TRUE(ended.ok()) << ended.error_message();
      unregistered = true;
    });
    inference::SystemSharedMemoryStatusResponse unused;
    WaitUntil([&] { return !Status("r", &unused).ok(); });
    EXPECT_EQ(NamedRegions(), 1);
    EXPECT_FALSE(unregistered);
    call.FinishOk();
    waiter.join();
    EXPECT_EQ(NamedRegions(), 0);
  }
  // Nobody is inside, and there is no such region: at once.
  RegisterOk(file_, kFileBytes);
  EXPECT_TRUE(Unregister("r", "wait").ok());
  EXPECT_EQ(Unregister("r", "wait").error_code(), Code::NOT_FOUND);
  EXPECT_TRUE(Unregister("", "wait").ok());
}

TEST_F(RegionAttackTest, UnregisteringWaitsNoLongerThanItsDeadline) {
  RegisterOk(file_, kFileBytes);
  StalledInfer call(*this, InRegions({}, {"r", kY}));
  inference::SystemSharedMemoryUnregisterRequest request;
  request.set_name("r");
  inference::SystemSharedMemoryUnregisterResponse unused;
  grpc::ClientContext context;
  context.AddMetadata("normd-in-use", "wait");
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  EXPECT_EQ(stub_->SystemSharedMemoryUnregister(&context, request, &unused).error_code(),
            Code::DEADLINE_EXCEEDED);
  ExpectRefused(InRegions({}, {"r", kY}), Code::NOT_FOUND, "is not registered");
  call.FinishOk();  // It kept what it had.
  server_.WaitIdle();
  EXPECT_EQ(NamedRegions(), 0);
}

TEST_F(RegionAttackTest, ReRegisteredUnderTheSameName) {
  RegisterOk(file_, kFileBytes);
  EXPECT_EQ(Register(file_.key(), 0, 1).error_code(), Code::ALREADY_EXISTS);
  // Nor while a request has the first.
  WriteInput(file_, Plain());
  StalledInfer call(*this, InRegions({}, {"r", kY}));
  ASSERT_TRUE(Unregister("r").ok());
  const SharedFile second(kFileBytes);
  RegisterOk(second, kFileBytes);
  call.FinishOk();
  EXPECT_EQ(OutputIn(file_, kY), Expected(Plain()));
  EXPECT_EQ(OutputIn(second, kY), std::string(kTensorBytes, '\0'));
}

TEST_F(RegionAttackTest, NamesWithSlashesDotsNulLinksAndFifos) {
  for (const std::string& key :
       {std::string(), std::string("/"), std::string(".."), std::string("/../etc/passwd"),
        std::string("//") + file_.key(), std::string("a/b"), std::string("x\0y", 3),
        std::string(300, 'k')}) {
    const grpc::Status status = Register(key, 0, 1);
    EXPECT_EQ(status.error_code(), Code::INVALID_ARGUMENT) << status.error_message();
  }
  const std::string link = absl::StrCat("normd_link_", getpid());
  const std::string fifo = absl::StrCat("normd_fifo_", getpid());
  ASSERT_EQ(symlink(absl::StrCat("/dev/shm", file_.key()).c_str(),
                    absl::StrCat("/dev/shm/", link).c_str()),
            0);
  ASSERT_EQ(mkfifo(absl::StrCat("/dev/shm/", fifo).c_str(), 0600), 0);
  for (const std::string& key : {link, fifo, std::string("normd_nothing")}) {
    const grpc::Status status = Register(key, 0, 1);
    EXPECT_EQ(status.error_code(), Code::NOT_FOUND) << status.error_message();
  }
  unlink(absl::StrCat("/dev/shm/", link).c_str());
  unlink(absl::StrCat("/dev/shm/", fifo).c_str());
}

TEST_F(RegionAttackTest, OutputOverlapsAnInput) {
  RegisterOk(file_, kFileBytes);
  RegisterOk(file_, kFileBytes - 4096, "shifted", 4096);
  for (const RegionPart& y :
       {RegionPart{"r", 4}, RegionPart{"r", kTensorBytes - 4}, RegionPart{"shifted", 0}}) {
    ExpectRefused(InRegions({}, y), Code::INVALID_ARGUMENT,
                  "outputs[0].shared_memory: overlaps input \"x\"");
  }
  // The same bytes under another name have another address, at which no kernel sees the overlap.
  ExpectRefused(InRegions({"r", 4096}, {"shifted", 0}), Code::INVALID_ARGUMENT,
                "of the input it may overwrite, in the same region");
  EXPECT_TRUE(Infer(InRegions({}, {"r", kTensorBytes})).ok());
}

TEST_F(RegionAttackTest, OutputsOverlapEachOtherOrTheWrongInput) {
  RegisterOk(file_, kFileBytes);
  inference::ModelInferRequest request;
  request.set_model_name("add_rms_norm_4096");
  for (const char* name : {"x", "residual"}) {
    auto& input = *request.add_inputs();
    input.set_name(name);
    input.set_datatype("FP32");
    input.add_shape(1);
    input.add_shape(4096);
  }
  Place({"r", 0, 16384}, request.mutable_inputs(0));
  Place({"r", 16384, 16384}, request.mutable_inputs(1));
  for (const char* name : {"y", "residual_out"}) request.add_outputs()->set_name(name);
  const auto place = [&](std::int64_t y, std::int64_t residual) {
    Place({"r", y, 16384}, request.mutable_outputs(0));
    Place({"r", residual, 16384}, request.mutable_outputs(1));
  };
  place(32768, 32768 + 16380);
  ExpectRefused(request, Code::INVALID_ARGUMENT, "outputs[1].shared_memory: overlaps another");
  place(16384, 32768);
  ExpectRefused(request, Code::INVALID_ARGUMENT, "overlaps input \"residual\"");
  place(4, 16384);
  ExpectRefused(request, Code::INVALID_ARGUMENT, "outputs[0].shared_memory: overlaps input \"x\"");
  request.mutable_outputs(0)->clear_parameters();
  Place({"r", 0, 16384}, request.mutable_outputs(0));
  const grpc::Status status = Infer(request);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(RegionAttackTest, AnOutputThatIsNotAligned) {
  RegisterOk(file_, kFileBytes);
  ExpectRefused(InRegions({}, {"r", kY + 2}), Code::INVALID_ARGUMENT,
                "outputs[0].shared_memory: region \"r\": offset 20482, wanted the output aligned "
                "to 4 bytes");
}

TEST_F(RegionAttackTest, ReadOnlyRegionAsOutput) {
  ASSERT_EQ(fchmod(file_.descriptor(), 0444), 0);
  {
    const AsNobody nobody;
    RegisterOk(file_, kFileBytes);
  }
  inference::ModelInferRequest request = InRegions({}, {});
  request.clear_outputs();
  EXPECT_TRUE(Infer(request).ok()) << "an input may be read";
  ExpectRefused(InRegions({}, {"r", kY}), Code::INVALID_ARGUMENT, "may only be read");
}

// Its name is all that a stranger needs to use it.
TEST_F(RegionAttackTest, TheCallsForNamedRegionsKnowNoDescriptors) {
  SteadyClock clock;
  Metrics metrics;
  RegionRegistry registry({{}, true}, metrics.ForRegions(), clock);
  RegionFacts facts;
  facts.kind = RegionKind::kDescriptor;
  facts.name = "fd-0";
  facts.bytes = kFileBytes;
  ASSERT_TRUE(registry.RegisterFile(file_.descriptor(), facts).ok());
  inference::SystemSharedMemoryStatusResponse response;
  EXPECT_TRUE(AddRegions(&registry, "", "", response).ok());
  EXPECT_EQ(response.regions_size(), 0);
  EXPECT_FALSE(AddRegions(&registry, "", "fd-0", response).ok());
  EXPECT_FALSE(UnregisterRegions(&registry, {"", "fd-0"}, Unregistering::kFinish, nullptr).ok());
  EXPECT_TRUE(UnregisterRegions(&registry, {"", ""}, Unregistering::kFinish, nullptr).ok());
  EXPECT_TRUE(registry.Find("", "fd-0").ok());
}

class RegionIdentityTest : public RegionFixture {
 protected:
  explicit RegionIdentityTest(const SecretFolder& folder = SecretFolder())
      : RegionFixture(WithTwoAdmins(folder)) {}
};

TEST_F(RegionIdentityTest, AnotherIdentitysRegion) {
  ASSERT_TRUE(Register(file_.key(), 0, kFileBytes, "r", 'a').ok());
  EXPECT_TRUE(Infer(InRegions({}, {"r", kY}), nullptr, 'a').ok());
  for (const char other : {'b', 'u'}) {
    ExpectRefused(InRegions({}, {"r", kY}), Code::NOT_FOUND,
                  "inputs[0].shared_memory: region \"r\" is not registered", other);
  }
  inference::SystemSharedMemoryStatusResponse response;
  ASSERT_TRUE(Status("", &response, 'b').ok());
  EXPECT_EQ(response.regions_size(), 0);
  EXPECT_EQ(Unregister("r", nullptr, 'b').error_code(), Code::NOT_FOUND);
  EXPECT_TRUE(Unregister("", nullptr, 'b').ok());
  EXPECT_TRUE(Infer(InRegions({}, {"r", kY}), nullptr, 'a').ok());
  const SharedFile own(kFileBytes);
  EXPECT_TRUE(Register(own.key(), 0, kFileBytes, "r", 'b').ok()) << "names are each one's own";
}

TEST_F(RegionIdentityTest, RegistrationNeedsTheRightOfAnAdmin) {
  for (const char caller : {'u', ' '}) {
    const Code code = Register(file_.key(), 0, kFileBytes, "r", caller).error_code();
    EXPECT_TRUE(code == Code::PERMISSION_DENIED || code == Code::UNAUTHENTICATED) << code;
  }
  EXPECT_EQ(NamedRegions(), 0);
}

// Whatever numbers result, and nothing else happens.
TEST_F(RegionAttackTest, TheInputChangesWhileItIsComputed) {
  RegisterOk(file_, kFileBytes);
  std::atomic<bool> stop{false};
  std::thread attacker([&] {
    for (std::uint32_t seed = 1; !stop; ++seed) {
      for (std::int64_t i = 0; i < kTensorBytes / 4; ++i) {
        file_.As<std::atomic<std::uint32_t>>()[i].store(seed * 2654435761U,
                                                        std::memory_order_relaxed);
      }
    }
  });
  for (int i = 0; i < 300; ++i) {
    const grpc::Status status = Infer(InRegions({}, {"r", kY}));
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  stop = true;
  attacker.join();
}

}  // namespace
}  // namespace normd::testing
