// What tests with threads share.

#ifndef NORMD_TESTS_SUPPORT_THREADS_H_
#define NORMD_TESTS_SUPPORT_THREADS_H_

#include <chrono>
#include <thread>
#include <vector>

namespace normd {

// Calls work(i) for each i below `count`, each on its own thread, and returns when all have.
template <typename Work>
void RunThreads(int count, const Work& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&work, i] { work(i); });
  for (std::thread& thread : threads) thread.join();
}

// Returns once `holds` does, which nothing announces: looks again every 0.2 ms, and leaves the
// processor to those who make it true.
template <typename Condition>
void WaitUntil(const Condition& holds) {
  while (!holds()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

}  // namespace normd

#endif  // NORMD_TESTS_SUPPORT_THREADS_H_
