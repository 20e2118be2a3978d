// Makes the text of scrapes, on a thread of its own.

#ifndef NORMD_SERVER_METRICS_SCRAPER_H_
#define NORMD_SERVER_METRICS_SCRAPER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/task_thread.h"

namespace normd {

// One text is made at a time, for all who asked before it was begun. The thread pauses after each,
// so that scrapes take at most a quarter of a core. Thread-safe.
class Scraper {
 public:
  // shared: slow readers keep the text while others go on. Null: memory for it was short.
  using Text = std::shared_ptr<const std::string>;
  // May throw std::bad_alloc, and is then called again.
  using Done = std::function<void(Text)>;

  // `make` runs on the scraper's thread.
  explicit Scraper(std::function<std::string()> make);
  ~Scraper() { Stop(); }
  Scraper(const Scraper&) = delete;
  Scraper& operator=(const Scraper&) = delete;

  // Calls `done` on the scraper's thread with a text that was begun after this call, compressed if
  // `gzip`. Never after Stop.
  void Ask(bool gzip, Done done);

  // Waits for a text in progress, and answers those who wait for it. Idempotent.
  void Stop();

 private:
  struct Waiting {
    bool gzip = false;
    Done done;
  };
  // `thread` is `thread_`, which Stop may be about to end.
  void Run(TaskThread& thread);
  void Answer(std::vector<Waiting> waiting);
  bool stopping();

  const std::function<std::string()> make_;
  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // A Run comes while there are any.
  std::optional<TaskThread> thread_;                      // Last: it uses the others.
};

// In gzip's format; empty when memory is short.
std::string Gzip(const std::string& text);

}  // namespace normd

#endif  // NORMD_SERVER_METRICS_SCRAPER_H_
