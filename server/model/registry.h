// The loaded models, and their loading from a repository of
//   <root>/<name>/config.textproto and <root>/<name>/<version>/params.safetensors
// in one or several roots.

#ifndef NORMD_SERVER_MODEL_REGISTRY_H_
#define NORMD_SERVER_MODEL_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "server/metrics/metrics.h"
#include "server/model/known_versions.h"
#include "server/model/model.h"
#include "server/model/model_name.h"
#include "server/model/repository.h"

namespace normd {

struct RegistryOptions {
  std::vector<std::string> roots;                            // The folders of models; at least one.
  std::int64_t max_parameter_bytes = std::int64_t{4} << 30;  // The most in one file.
  // Versions that are known at once, of all models; the records of failed loads give way to others.
  std::int64_t max_models = 10000;
  // Called after each change of what serves, without locks: (model name, has a loaded version). One
  // call at a time, in the order of the changes; with loads on several threads, possibly on another
  // thread than the load's. May call the registry.
  std::function<void(const std::string&, bool)> on_change;
};

// Whose wish it is that a version goes.
enum class UnloadedBy { kClient, kRepository };

struct UnloadedVersion {
  std::string name;
  std::int64_t version = 0;
  VersionFiles files;  // At the beginning of its last load.
};

// Thread-safe. Find, List and Get never wait for a load, nor Find and Get for a list; loads and
// unloads are serialised among themselves, and wait for each other. Every call is InvalidArgument
// for a name that CheckModelName refuses and for a negative version. What a load fails for is kept
// for Get only if the repository holds the version or it was known before, so that made-up names
// take no memory.
class ModelRegistry {
 public:
  // `backend`, `metrics` and `clock` outlive the registry.
  ModelRegistry(RegistryOptions options, ModelBackend& backend, Metrics& metrics, Clock& clock);
  ~ModelRegistry();

  // Loads the versions of every model that its version_policy wants, the models in the order of
  // their names. A version that fails leaves its reason in List and in the log, and its place to
  // the next lower one; those beyond max_models are not loaded, which the log says. NotFound when a
  // root is not a readable directory, InvalidArgument when two have a model of one name.
  absl::Status LoadAll();

  // version 0: the highest that is loaded but for the canary, as far as there is another. NotFound
  // names the model and what is loaded of it.
  absl::StatusOr<std::shared_ptr<const Model>> Find(absl::string_view name,
                                                    std::int64_t version) const;
  // The same for a request that computes: without a version, the model's canary takes its share.
  absl::StatusOr<std::shared_ptr<const Model>> FindForRequest(absl::string_view name,
                                                              std::int64_t version) const;
  // The version that a version_alias of the model names; an error when there is no such alias.
  absl::StatusOr<std::int64_t> VersionOfAlias(absl::string_view name,
                                              absl::string_view alias) const;

  // version 0: those that the model's version_policy wants of the repository; the result is the
  // highest's, and when that fails the others are not loaded. Where the policy wants none and no
  // version serves, the model is known with version 0 and the reason. Blocks for the read and the
  // backend's Prepare, then swaps the new state in at once. On failure what served before goes on
  // serving. ResourceExhausted at max_models; Aborted while the files are being written.
  absl::StatusOr<ModelStatus> Load(absl::string_view name, std::int64_t version);

  // The repository has a new config of the model, read when its file was `file`. Takes it for the
  // loaded versions whose own differs from it in version_policy, canary and version_alias alone,
  // without loading anything: returns these. Does nothing for those that were loaded from `file`.
  std::vector<std::int64_t> TakeConfig(const std::string& name, const v1::ModelConfig& config,
                                       const std::optional<FileState>& file);

  // version 0: every version. Requests in flight finish. Returns the versions unloaded. Failed
  // versions are forgotten too, without being in the response; NotFound when there is nothing of
  // either kind.
  absl::StatusOr<std::vector<std::int64_t>> Unload(absl::string_view name, std::int64_t version,
                                                   UnloadedBy by = UnloadedBy::kClient);
  // The first version that a client has unloaded and no call has returned yet; of the last
  // max_models. Blocks for a load.
  std::optional<UnloadedVersion> TakeUnloaded();

  // By name, then version.
  std::vector<ModelStatus> List() const;
  // Another number after each change of what List returns.
  std::uint64_t changes() const;
  // version 0: the highest known, loaded or failed.
  absl::StatusOr<ModelStatus> Get(absl::string_view name, std::int64_t version) const;
  // Every version that is known of the model.
  std::vector<ModelStatus> ListOf(absl::string_view name) const;

  // What it loads from.
  const Repository& repository() const;

 private:
  // At the start; false when max_models allows no more.
  bool LoadModelAtStart(const std::string& name);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_REGISTRY_H_
