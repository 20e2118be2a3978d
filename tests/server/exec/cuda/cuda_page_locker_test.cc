#include "server/exec/cuda/cuda_device.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/descriptor.h"

namespace normd {
namespace {

constexpr std::size_t kBytes = std::size_t{4} << 20;

// Memory that another process could have.
class SharedPages {
 public:
  explicit SharedPages(int access = PROT_READ | PROT_WRITE)
      : file_(memfd_create("pages", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(file_.get(), kBytes), 0);
    of_client_ = Map(PROT_READ | PROT_WRITE);
    of_server_ = Map(access);
    for (std::size_t i = 0; i < kBytes; ++i) of_client_[i] = static_cast<std::byte>(i % 251);
  }
  ~SharedPages() {
    munmap(of_client_, kBytes);
    munmap(of_server_, kBytes);
  }
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;

  std::byte* of_client() const { return of_client_; }
  std::byte* of_server() const { return of_server_; }

 private:
  std::byte* Map(int access) const {
    void* const at = mmap(nullptr, kBytes, access, MAP_SHARED, file_.get(), 0);
    EXPECT_NE(at, MAP_FAILED);
    return static_cast<std::byte*>(at);
  }

  const Descriptor file_;
  std::byte* of_client_ = nullptr;
  std::byte* of_server_ = nullptr;
};

class CudaPageLockerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device on this machine";
    device_ = *OpenCudaDevice(0);
    locker_ = CreateCudaPageLocker({0});
    stream_ = *device_->CreateStream(0);
    memory_ = *device_->Allocate(MemoryKind::kDevice, kBytes);
  }
  void ExpectCopiedIn(const SharedPages& pages) {
    ASSERT_TRUE(stream_->CopyIn(memory_.data(), pages.of_server(), kBytes).ok());
    std::vector<std::byte> back(kBytes);
    ASSERT_TRUE(stream_->CopyOut(back.data(), memory_.data(), kBytes).ok());
    ASSERT_TRUE(stream_->Wait().ok());
    EXPECT_EQ(std::memcmp(back.data(), pages.of_client(), kBytes), 0);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<PageLocker> locker_;
  std::unique_ptr<DeviceStream> stream_;
  Buffer memory_;
};

TEST_F(CudaPageLockerTest, TheDeviceReadsAndWritesWhatIsLockedAndTheClientSeesIt) {
  const SharedPages pages;
  for (int i = 0; i < 3; ++i) {
    const absl::Status locked = locker_->Lock(pages.of_server(), kBytes, true);
    ASSERT_TRUE(locked.ok()) << locked;
    ExpectCopiedIn(pages);
    std::memset(pages.of_client(), 0, kBytes);
    ASSERT_TRUE(stream_->CopyOut(pages.of_server(), memory_.data(), kBytes).ok());
    ASSERT_TRUE(stream_->Wait().ok());
    for (std::size_t at = 0; at < kBytes; at += 4093) {
      ASSERT_EQ(pages.of_client()[at], static_cast<std::byte>(at % 251));
    }
    locker_->Unlock(pages.of_server());
  }
}

// Whether a device takes read-only pages is the machine's.
TEST_F(CudaPageLockerTest, ReadOnlyPagesAreLockedForReadingOrRefused) {
  const SharedPages pages(PROT_READ);
  const absl::Status locked = locker_->Lock(pages.of_server(), kBytes, false);
  RecordProperty("read_only_pages", locked.ok() ? "locked" : "refused");
  ExpectCopiedIn(pages);
  if (locked.ok()) locker_->Unlock(pages.of_server());
}

TEST_F(CudaPageLockerTest, WhatIsRefusedLeavesTheDeviceAsItWas) {
  auto gone = std::make_unique<SharedPages>();
  std::byte* const nothing = gone->of_server();
  gone.reset();
  EXPECT_FALSE(locker_->Lock(nothing, kBytes, true).ok());
  const SharedPages pages;
  ASSERT_TRUE(locker_->Lock(pages.of_server(), kBytes, true).ok());
  EXPECT_FALSE(locker_->Lock(pages.of_server(), kBytes, true).ok()) << "locked already";
  ExpectCopiedIn(pages);
  locker_->Unlock(pages.of_server());
  locker_->Unlock(pages.of_server());
  EXPECT_TRUE(device_->usable());
}

}  // namespace
}  // namespace normd
