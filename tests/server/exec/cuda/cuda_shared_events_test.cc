// Events of a second process, which is this program again: by its input it is told what to do with
// its event, and by its output it tells the handle.

#include "server/exec/cuda/cuda_shared_events.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "server/exec/cuda/cuda_device.h"

namespace normd {
namespace {

using std::chrono::steady_clock;

void AwaitRelease(void* semaphore) { static_cast<std::binary_semaphore*>(semaphore)->acquire(); }

// The second process. "b": its stream stands still, with the event behind that; "r": it goes on;
// "d": the event is destroyed. Each is answered by a byte, the beginning by the handle.
int RunChild() {
  std::binary_semaphore released{0};
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cudaIpcEventHandle_t handle{};
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming);
  if (cudaIpcGetEventHandle(&handle, event) != cudaSuccess) return 1;
  if (write(STDOUT_FILENO, &handle, sizeof(handle)) != sizeof(handle)) return 1;
  char command = 0;
  while (read(STDIN_FILENO, &command, 1) == 1) {
    if (command == 'b') {
      cudaLaunchHostFunc(stream, AwaitRelease, &released);
      cudaEventRecord(event, stream);
    } else if (command == 'r') {
      released.release();
      cudaStreamSynchronize(stream);
    } else {
      cudaEventDestroy(event);
    }
    if (write(STDOUT_FILENO, &command, 1) != 1) return 1;
  }
  return 0;
}

class Child {
 public:
  Child() {
    int in[2];
    int out[2];
    if (pipe(in) != 0 || pipe(out) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      for (const int fd : {in[0], in[1], out[0], out[1]}) close(fd);
      execl("/proc/self/exe", "child", "--child", nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = out[0];
    handle_.resize(kEventHandleBytes);
    EXPECT_EQ(read(from_, handle_.data(), handle_.size()), static_cast<ssize_t>(kEventHandleBytes));
  }
  ~Child() { Kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void Do(char command) {
    char answer = 0;
    EXPECT_EQ(write(to_, &command, 1), 1);
    EXPECT_EQ(read(from_, &answer, 1), 1);
    EXPECT_EQ(answer, command);
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
    close(to_);
    close(from_);
  }
  ConstBytes handle() const {
    return {reinterpret_cast<const std::byte*>(handle_.data()), handle_.size()};
  }

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string handle_;
};

class CudaSharedEventsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device on this machine";
    events_ = CreateCudaSharedEvents();
    device_ = *OpenCudaDevice(0);
  }
  void TearDown() override {
    if (device_ == nullptr) return;
    EXPECT_TRUE(device_->usable());
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "nothing is left behind";
  }
  std::unique_ptr<SharedDeviceEvent> Open(const Child& child) {
    auto event = events_->Open(0, child.handle());
    EXPECT_TRUE(event.ok()) << event.status();
    return event.ok() ? *std::move(event) : nullptr;
  }
  static bool Reached(SharedDeviceEvent& event) {
    const absl::StatusOr<bool> reached = event.Reached();
    EXPECT_TRUE(reached.ok()) << reached.status();
    return reached.value_or(false);
  }
  // What is on its way from one process to the other may take a moment.
  static bool BecomesReached(SharedDeviceEvent& event) {
    const auto end = steady_clock::now() + std::chrono::seconds(10);
    while (!Reached(event)) {
      if (steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

  std::unique_ptr<SharedDeviceEvents> events_;
  std::unique_ptr<Device> device_;
};

TEST_F(CudaSharedEventsTest, IsReachedWhenTheOtherProcessesWorkIsDone) {
  Child child;
  const auto event = Open(child);
  ASSERT_NE(event, nullptr);
  EXPECT_TRUE(Reached(*event)) << "never recorded";
  for (int i = 0; i < 20; ++i) {
    child.Do('b');
    for (int k = 0; k < 100; ++k) EXPECT_FALSE(Reached(*event)) << "recorded " << i;
    child.Do('r');
    EXPECT_TRUE(BecomesReached(*event));
  }
}

TEST_F(CudaSharedEventsTest, OneThatIsOpenedWhileItIsPendingIsPending) {
  Child child;
  child.Do('b');
  const auto event = Open(child);
  ASSERT_NE(event, nullptr);
  EXPECT_FALSE(Reached(*event));
  const auto again = Open(child);
  ASSERT_NE(again, nullptr);
  EXPECT_FALSE(Reached(*again));
  child.Do('r');
  EXPECT_TRUE(BecomesReached(*event));
  EXPECT_TRUE(BecomesReached(*again));
}

// Not all garbage is: a handle like an event's, but for some bits, may end the process.
TEST_F(CudaSharedEventsTest, RandomBytesAndTheProcessesOwnAreRefused) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> garbage(kEventHandleBytes);
    if (i > 0) {
      for (std::byte& byte : garbage) byte = static_cast<std::byte>(random());
    }
    const auto event = events_->Open(0, garbage);
    ASSERT_EQ(event.status().code(), absl::StatusCode::kInvalidArgument) << event.status();
  }
  cudaEvent_t own = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&own, cudaEventInterprocess | cudaEventDisableTiming),
            cudaSuccess);
  cudaIpcEventHandle_t handle{};
  ASSERT_EQ(cudaIpcGetEventHandle(&handle, own), cudaSuccess);
  const auto of_own =
      events_->Open(0, {reinterpret_cast<const std::byte*>(&handle), sizeof(handle)});
  EXPECT_EQ(of_own.status().code(), absl::StatusCode::kInvalidArgument) << of_own.status();
  EXPECT_EQ(cudaEventDestroy(own), cudaSuccess);
}

// CUDA leaves undefined what such an event says. Whatever it is, the server lives and goes on.
TEST_F(CudaSharedEventsTest, WhatItsProcessDestroysOrTakesToItsEndHarmsNobody) {
  for (const bool killed : {true, false}) {
    for (int i = 0; i < 10; ++i) {
      Child child;
      child.Do('b');
      const auto event = Open(child);
      ASSERT_NE(event, nullptr);
      EXPECT_FALSE(Reached(*event));
      killed ? child.Kill() : child.Do('d');
      int reached = 0;
      int errors = 0;
      for (int k = 0; k < 1000; ++k) {
        const absl::StatusOr<bool> after = event->Reached();
        if (!after.ok() && errors++ == 0) std::cout << after.status() << std::endl;
        if (after.ok() && *after) ++reached;
      }
      if (i == 0) {
        std::cout << (killed ? "killed" : "destroyed") << ": of 1000 queries " << reached
                  << " reached, " << errors << " errors" << std::endl;
      }
      // Another's events work as before.
      Child other;
      const auto of_other = Open(other);
      ASSERT_NE(of_other, nullptr);
      other.Do('b');
      EXPECT_FALSE(Reached(*of_other));
      other.Do('r');
      EXPECT_TRUE(BecomesReached(*of_other));
      if (!killed) child.Do('r');
    }
  }
}

// Prints what they cost; holds no time.
TEST_F(CudaSharedEventsTest, ManyOpensLeaveNothing) {
  Child child;
  child.Do('b');
  std::size_t free_before = 0;
  std::size_t total = 0;
  Open(child).reset();
  ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);
  std::vector<double> open_us;
  std::vector<double> ask_us;
  std::vector<double> close_us;
  const auto timed = [](std::vector<double>& to, const auto& work) {
    const auto begin = steady_clock::now();
    work();
    to.push_back(std::chrono::duration<double, std::micro>(steady_clock::now() - begin).count());
  };
  for (int i = 0; i < 2000; ++i) {
    std::unique_ptr<SharedDeviceEvent> event;
    timed(open_us, [&] { event = Open(child); });
    ASSERT_NE(event, nullptr);
    timed(ask_us, [&] { EXPECT_FALSE(Reached(*event)); });
    timed(close_us, [&] { event.reset(); });
  }
  for (auto* times : {&open_us, &ask_us, &close_us}) std::sort(times->begin(), times->end());
  std::printf("open %.1f us (p99 %.1f), ask %.2f us (p99 %.2f), close %.1f us (p99 %.1f)\n",
              open_us[1000], open_us[1980], ask_us[1000], ask_us[1980], close_us[1000],
              close_us[1980]);
  std::size_t free_after = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
  EXPECT_EQ(free_after, free_before);
  child.Do('r');
}

}  // namespace
}  // namespace normd

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--child") == 0) return normd::RunChild();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
