// Checks periodically whether the policy's files have changed.

#ifndef NORMD_SERVER_IDENTITY_ACCESS_WATCH_H_
#define NORMD_SERVER_IDENTITY_ACCESS_WATCH_H_

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "server/identity/access.h"

namespace normd {

// Runs on its own thread, which reads files and so may wait for a disk.
class AccessWatch {
 public:
  // `access` outlives it.
  explicit AccessWatch(Access& access, Duration period = std::chrono::seconds(1));
  ~AccessWatch();
  AccessWatch(const AccessWatch&) = delete;
  AccessWatch& operator=(const AccessWatch&) = delete;

 private:
  void Loop();

  Access& access_;
  const Duration period_;
  Mutex mutex_;
  CondVar ended_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace normd

#endif  // NORMD_SERVER_IDENTITY_ACCESS_WATCH_H_
