// Makes the text of scrapes, on a thread of its own.

#ifndef NORMD_SERVER_METRICS_SCRAPER_H_
#define NORMD_SERVER_METRICS_SCRAPER_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace normd {

// One text is made at a time, for all who asked before it was begun. The thread pauses behind each,
// so that scrapes take at most a quarter of a core. Thread-safe.
class Scraper {
 public:
  // shared: whoever takes the text slowly keeps it while others go on. Null: it could not be made,
  // for lack of memory.
  using Text = std::shared_ptr<const std::string>;
  using Done = std::function<void(Text)>;

  // `make` runs on the scraper's thread.
  explicit Scraper(std::function<std::string()> make);
  ~Scraper() { Stop(); }
  Scraper(const Scraper&) = delete;
  Scraper& operator=(const Scraper&) = delete;

  // Calls `done` on the scraper's thread with a text that was begun after this call, compressed or
  // not. After Stop, never.
  void Ask(bool gzip, Done done);

  // Waits for a text that is being made, and answers those who wait for it. Idempotent.
  void Stop();

 private:
  struct Waiting {
    bool gzip = false;
    Done done;
  };
  void Run();
  void Answer(const std::vector<Waiting>& waiting);

  const std::function<std::string()> make_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Last: it uses the others.
};

// In gzip's format; empty when there is no memory for it.
std::string Gzip(const std::string& text);

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_SCRAPER_H_
