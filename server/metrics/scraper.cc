#include "server/metrics/scraper.h"

#include <zlib.h>

#include <chrono>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace normd {
namespace {

// zlib's default window with gzip's header instead of its own.
constexpr int kGzipWindowBits = 15 + 16;
constexpr int kDefaultMemory = 8;

// How long an answer waits for memory before it is tried again.
constexpr Duration kRetryInterval = std::chrono::milliseconds(10);

}  // namespace

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  // Fast: a scrape shrinks to a twentieth at any level.
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzipWindowBits, kDefaultMemory,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return "";
  }
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = deflate(&stream, Z_FINISH);
  out.resize(result == Z_STREAM_END ? stream.total_out : 0);
  out.shrink_to_fit();
  deflateEnd(&stream);
  return out;
}

Scraper::Scraper(std::function<std::string()> make) : make_(std::move(make)) {
  thread_.emplace("scrapes", /*max_waiting=*/1);
}

void Scraper::Ask(bool gzip, Done done) {
  MutexLock lock(mutex_);
  if (stopping_) return;
  // First: without memory for the other, Run finds nobody.
  if (waiting_.empty()) thread_->Submit([this, &thread = *thread_] { Run(thread); });
  waiting_.push_back({gzip, std::move(done)});
}

void Scraper::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  thread_.reset();
}

void Scraper::Run(TaskThread& thread) {
  std::vector<Waiting> waiting;
  {
    MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  if (waiting.empty()) return;
  const SteadyClock clock;
  const TimePoint begin = clock.Now();
  Answer(std::move(waiting));
  thread.Pause(PauseAfter(clock.Now() - begin));
}

bool Scraper::stopping() {
  MutexLock lock(mutex_);
  return stopping_;
}

void Scraper::Answer(std::vector<Waiting> waiting) {
  Text plain;
  Text gzip;
  try {
    plain = std::make_shared<const std::string>(make_());
  } catch (const std::exception&) {
    // No memory: each of them is told.
  }
  const auto tell = [&](const Waiting& one) {
    if (one.gzip && plain != nullptr && gzip == nullptr) {
      try {
        gzip = std::make_shared<const std::string>(Gzip(*plain));
      } catch (const std::exception&) {
        // Likewise.
      }
    }
    try {
      one.done(one.gzip ? gzip : plain);
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  };
  // A connection waits for its answer without a limit, so none may be lost.
  while (std::erase_if(waiting, tell), !waiting.empty() && !stopping()) {
    std::this_thread::sleep_for(kRetryInterval);
  }
}

}  // namespace normd
