#include "tests/bench/measure.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "absl/strings/numbers.h"

namespace normd {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double CpuMicroseconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto us = [](const timeval& t) {
    return 1e6 * static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec);
  };
  return us(use.ru_utime) + us(use.ru_stime);
}

BenchTurn TakeTurn(std::size_t clients, absl::Duration length,
                   absl::FunctionRef<void(std::size_t)> call) {
  std::atomic<bool> stop{false};
  std::vector<std::vector<double>> latencies(clients);
  std::vector<std::thread> threads;
  const double cpu_us = CpuMicroseconds();
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < clients; ++i) {
    threads.emplace_back([&, i] {
      do {
        const auto sent = std::chrono::steady_clock::now();
        call(i);
        const std::chrono::duration<double, std::micro> took =
            std::chrono::steady_clock::now() - sent;
        latencies[i].push_back(took.count());
      } while (!stop.load(std::memory_order_relaxed));
    });
  }
  std::this_thread::sleep_for(absl::ToChronoNanoseconds(length));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const double used_us = CpuMicroseconds() - cpu_us;
  std::vector<double> all;
  for (const auto& one : latencies) all.insert(all.end(), one.begin(), one.end());
  std::sort(all.begin(), all.end());
  const auto calls = static_cast<double>(all.size());
  return {calls, calls / took.count(), all[all.size() / 2], all[all.size() * 99 / 100],
          used_us / calls};
}

std::vector<std::int64_t> SizesOrExit(const std::vector<std::string>& sizes, std::int64_t unit) {
  std::vector<std::int64_t> numbers;
  for (const std::string& size : sizes) {
    std::int64_t& bytes = numbers.emplace_back();
    if (absl::SimpleAtoi(size, &bytes) && bytes > 0 && bytes % unit == 0) continue;
    std::fprintf(stderr, "--sizes: %s, wanted multiples of %lld\n", size.c_str(),
                 static_cast<long long>(unit));
    std::exit(2);
  }
  return numbers;
}

}  // namespace normd
