// Follows the model repository: what comes to rest there is loaded, what leaves it is unloaded.

#ifndef NORMD_SERVER_MODEL_REPOSITORY_POLL_H_
#define NORMD_SERVER_MODEL_REPOSITORY_POLL_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "server/metrics/metrics.h"
#include "server/model/registry.h"
#include "server/model/repository.h"
#include "server/model/version_plan.h"

namespace normd {

// Looks at the whole repository again and again, and acts on changes alone, so that what a client
// loads or unloads stays as it is until the repository changes there.
//
// - A version is loaded when its files, the config among them, are the same in two looks one after
//   the other and not those of its last load, as far as the model's version_policy wants it. Files
//   that a load refuses are tried again when they change; where the cause may pass by itself, such
//   as a lack of memory, every minute and after an unload too. A config that differs in
//   version_policy, canary and version_alias alone is taken without a load.
// - A version goes when two looks one after the other do not find it, or when the policy no longer
//   wants it and those that it does want serve. The last version of a model that serves stays,
//   found or not, until another serves or until two looks find no version of the model. So broken
//   versions, broken configs and missing versions together take nothing away.
// - A root that cannot be listed takes nothing away either, nor does one that is suddenly empty and
//   on another file system: a volume that is gone.
//
// Not thread-safe, but for LookSoon.
class RepositoryPoll {
 public:
  // ModelRegistry::LoadAll has been called. All of them outlive the poll.
  RepositoryPoll(ModelRegistry& registry, Metrics& metrics, const Clock& clock);
  // Waits for the version that is being loaded.
  ~RepositoryPoll();
  RepositoryPoll(const RepositoryPoll&) = delete;
  RepositoryPoll& operator=(const RepositoryPoll&) = delete;

  // One look. Blocks for the loads.
  void Look();
  // Looks from here on, on a thread of its own: now, whenever LookSoon asks for it, and every
  // `interval` if it is above 0.
  void Watch(Duration interval);
  // Watch looks twice, at once and a second later, and so loads what has come to rest. The first of
  // these looks also tries again what failed for a cause that may pass. Thread-safe; does not
  // block.
  void LookSoon();

 private:
  // The outcome of the last load that this class has seen.
  struct Judged {
    VersionFiles files;
    absl::Status status;
    TimePoint at{};
  };
  struct Model {
    RepositoryScan::Model folder;           // At the last look;
    bool there = true;                      // not there any more: what it was before.
    std::optional<VersionPlan> plan;        // From the last readable config.
    std::optional<FileState> plan_file;     // The config that was read last.
    std::vector<std::int64_t> held;         // By the plan.
    std::set<std::int64_t> outliving;       // Serve without files, as the log has told.
    std::map<std::int64_t, Judged> judged;  // Also of versions that a client has unloaded since.
    bool told = false;                      // That the folder cannot be taken.
    absl::Status unwanted;                  // Why the plan wants none, as was told.
  };
  struct Root {
    std::uint64_t device = 0;  // When it had models last; 0: never.
    std::string trouble;       // Why it could not be listed.
  };

  void Begin();
  bool CheckRoots(const RepositoryScan& scan);
  void Follow(const std::string& name, Model& model, const RepositoryScan::Model& before);
  void TellOfFolder(const std::string& name, Model& model, const RepositoryScan::Model& before);
  void ForgetFailures(const std::string& name, Model& model);
  void TellOfUnwanted(const std::string& name, Model& model, const absl::Status& unwanted);
  void RefreshPlan(const std::string& name, Model& model, const RepositoryScan::Model& before);
  VersionOutcome Judge(const std::string& name, Model& model, const RepositoryScan::Model& before,
                       std::int64_t version);
  void Retire(const std::string& name, Model& model, const RepositoryScan::Model& before,
              const VersionChoice& choice);
  void Unload(const std::string& name, std::int64_t version);
  void Run(Duration interval);
  // Waits for the time of the next look; false: there is none.
  bool WaitForLook(Duration interval);

  ModelRegistry& registry_;
  RepositoryMetrics& metrics_;
  const Clock& clock_;
  bool begun_ = false;
  bool retries_all_ = false;  // Whether this look tries again what failed less than a minute ago.
  bool room_came_ = false;  // Whether something was unloaded by the last look or by clients since.
  bool unloaded_ = false;   // Whether this look has unloaded something.
  std::map<std::string, Model> models_;
  std::vector<Root> roots_;

  // Between two loads of a look. Relaxed: it only saves work.
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  CondVar wake_;
  int looks_asked_for_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_REPOSITORY_POLL_H_
