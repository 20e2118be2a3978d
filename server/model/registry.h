// The loaded models, and their loading from a repository of
//   <root>/<name>/config.textproto and <root>/<name>/<version>/params.safetensors

#ifndef NORMD_SERVER_MODEL_REGISTRY_H_
#define NORMD_SERVER_MODEL_REGISTRY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "server/metrics/metrics.h"
#include "server/model/model.h"
#include "server/model/model_name.h"

namespace normd {

// What GetModel and ListModels tell of one version.
struct ModelStatus {
  std::string name;
  std::int64_t version = 0;
  std::shared_ptr<const Model> model;  // Null when the load failed.
  absl::Status error;                  // The last load's; may be set while an older state serves.
  Duration load_time{};                // The last load's, also if it failed.
};

struct RegistryOptions {
  std::string root;
  std::int64_t max_parameter_bytes = std::int64_t{4} << 30;  // The most in one file.
  // Versions that are known at once, of all models; the records of failed loads give way to others.
  std::int64_t max_models = 10000;
  // Called after each change of what serves, without locks: (model name, has a loaded version). One
  // call at a time, in the order of the changes; with loads on several threads, possibly on another
  // thread than the load's. May call the registry.
  std::function<void(const std::string&, bool)> on_change;
};

// Thread-safe. Find, List and Get never wait for a load; loads and unloads are serialised among
// themselves, and wait for each other. Every call is InvalidArgument for a name that CheckModelName
// refuses and for a negative version. What a load fails for is kept for Get only if the repository
// holds the version or it was known before, so that made-up names take no memory.
class ModelRegistry {
 public:
  // `backend`, `metrics` and `clock` outlive the registry.
  ModelRegistry(RegistryOptions options, ModelBackend& backend, Metrics& metrics, Clock& clock);
  ~ModelRegistry();

  // Loads the newest version of every model below the root, in the order of their names. A model
  // that fails leaves its reason in List and in the log, and the others load; those beyond
  // max_models are not loaded, which the log says. NotFound when the root is not a readable
  // directory.
  absl::Status LoadAll();

  // version 0: the highest that is loaded. NotFound names the model and what is loaded of it.
  absl::StatusOr<std::shared_ptr<const Model>> Find(absl::string_view name,
                                                    std::int64_t version) const;

  // version 0: the highest in the repository. Blocks for the read and the backend's Prepare, then
  // swaps the new state in at once. On failure what served before goes on serving.
  // ResourceExhausted at max_models; Aborted while the files are being written.
  absl::StatusOr<ModelStatus> Load(absl::string_view name, std::int64_t version);

  // version 0: every version. Requests in flight finish. Returns the versions unloaded. Failed
  // versions are forgotten too, without being in the response; NotFound when there is nothing of
  // either kind.
  absl::StatusOr<std::vector<std::int64_t>> Unload(absl::string_view name, std::int64_t version);

  // By name, then version.
  std::vector<ModelStatus> List() const;
  // version 0: the highest known, loaded or failed.
  absl::StatusOr<ModelStatus> Get(absl::string_view name, std::int64_t version) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace normd

#endif  // NORMD_SERVER_MODEL_REGISTRY_H_
