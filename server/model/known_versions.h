// The registry's state of one model: its versions, and the choice of one for a request.

#ifndef NORMD_SERVER_MODEL_KNOWN_VERSIONS_H_
#define NORMD_SERVER_MODEL_KNOWN_VERSIONS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "server/model/model.h"
#include "server/model/repository.h"
#include "server/model/version_plan.h"

namespace normd {

// The information about one version for GetModel and ListModels.
struct ModelStatus {
  std::string name;
  std::int64_t version = 0;
  std::shared_ptr<const Model> model;  // Null when the load failed.
  absl::Status error;                  // The last load's; may be set while an older state serves.
  Duration load_time{};                // The last load's, also if it failed.
  VersionFiles files;                  // The files at the beginning of the last load.
  TimePoint load_end{};                // The last load's.
};

// Replaced as a whole at each change, except for the count, which all states of a model share.
struct KnownVersions {
  std::vector<ModelStatus> list;  // Ascending.
  VersionPlan plan;               // From the last loaded config.
  // Counts requests without a version, while there is a canary. shared: with earlier and later
  // states.
  std::shared_ptr<std::atomic<std::uint64_t>> unnamed =
      std::make_shared<std::atomic<std::uint64_t>>(0);

  const ModelStatus* Find(std::int64_t version) const;  // Null: not known.
  // Inserts `status`. Version 0 stands for a model without any version and is removed when there is
  // one.
  void Insert(ModelStatus status);
  bool AnyLoaded() const;
  // The loaded version; version 0: the highest except the canary, or the canary if there is no
  // other. Null when none is loaded.
  const ModelStatus* FindLoaded(std::int64_t version) const;
  // The same for a request: without a version, the canary takes its share. Thread-safe.
  const ModelStatus* Choose(std::int64_t version) const;
};

// OK for a valid model name and a version that is not negative.
absl::Status CheckNameAndVersion(absl::string_view name, std::int64_t version);

// NotFound with the known versions of the model, or null if it is unknown; or CheckNameAndVersion's
// error: the name is only examined here, because a miss is rare.
absl::Status MissingVersion(absl::string_view name, std::int64_t version,
                            const KnownVersions* versions);
absl::Status MissingAlias(absl::string_view name, absl::string_view alias,
                          const KnownVersions* versions);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_KNOWN_VERSIONS_H_
