// What the registry knows of one model: its versions, and which of them takes a request.

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

// What GetModel and ListModels tell of one version.
struct ModelStatus {
  std::string name;
  std::int64_t version = 0;
  std::shared_ptr<const Model> model;  // Null when the load failed.
  absl::Status error;                  // The last load's; may be set while an older state serves.
  Duration load_time{};                // The last load's, also if it failed.
  VersionFiles files;                  // As they were when the last load began.
};

// Replaced as a whole when something changes, but for the count, which all states of a model share.
struct KnownVersions {
  std::vector<ModelStatus> list;  // Ascending.
  VersionPlan plan;               // Of the config that was loaded last.
  // Requests without a version, while there is a canary. shared: with the states before and after.
  std::shared_ptr<std::atomic<std::uint64_t>> unnamed =
      std::make_shared<std::atomic<std::uint64_t>>(0);

  const ModelStatus* Find(std::int64_t version) const;  // Null: not known.
  // Puts `status` in its place. Version 0 stands for a model without any version and goes when
  // there is one.
  void Insert(ModelStatus status);
  bool AnyLoaded() const;
  // Loaded; version 0: the highest but the canary, or the canary where there is no other. Null when
  // there is none.
  const ModelStatus* FindLoaded(std::int64_t version) const;
  // The same for a request: without a version, the canary takes its share. Thread-safe.
  const ModelStatus* Choose(std::int64_t version) const;
};

// OK for a name that a model may have and a version that is not negative.
absl::Status CheckNameAndVersion(absl::string_view name, std::int64_t version);

// NotFound with what is known of the model, null: nothing; or what CheckNameAndVersion says, since
// a miss is rare and the name is examined only here.
absl::Status MissingVersion(absl::string_view name, std::int64_t version,
                            const KnownVersions* versions);
absl::Status MissingAlias(absl::string_view name, absl::string_view alias,
                          const KnownVersions* versions);

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_KNOWN_VERSIONS_H_
