#include "server/model/registry.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mutex.h"
#include "base/printable.h"
#include "server/model/repository.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

// Versions of one model, ascending.
using Versions = std::vector<ModelStatus>;

double Milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

std::int64_t ParameterBytes(const Model& model) {
  std::int64_t bytes = 0;
  for (const Parameter& parameter : model.parameters()) {
    bytes += parameter.shape.elements() * static_cast<std::int64_t>(norm::SizeOf(parameter.dtype));
  }
  return bytes;
}

// With the model in front, for one who did not name it in this call.
absl::Status About(absl::string_view name, std::int64_t version, const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("model ", name, ", version ", version, ": ", status.message()));
}

bool IsLoaded(const ModelStatus& status) { return status.model != nullptr; }

bool AnyLoaded(const Versions& versions) {
  return std::any_of(versions.begin(), versions.end(), IsLoaded);
}

bool AnyFailed(const Versions& versions) {
  return !std::all_of(versions.begin(), versions.end(), IsLoaded);
}

std::string Describe(const Versions* versions) {
  const auto number = [](std::string* out, const ModelStatus& status) {
    absl::StrAppend(out, status.version, IsLoaded(status) ? "" : " (failed)");
  };
  if (versions == nullptr) return "no version is loaded";
  return absl::StrCat("known versions: ", absl::StrJoin(*versions, ", ", number));
}

absl::Status CheckRequest(absl::string_view name, std::int64_t version) {
  if (absl::Status status = CheckModelName(name); !status.ok()) return status;
  if (version < 0) {
    return absl::InvalidArgumentError(absl::StrCat("version: ", version, ", wanted 0 or more"));
  }
  return absl::OkStatus();
}

// A miss is rare, so the name is examined only here: a bad one is InvalidArgument.
absl::Status Missing(absl::string_view name, std::int64_t version, const Versions* versions) {
  if (absl::Status status = CheckRequest(name, version); !status.ok()) return status;
  return absl::NotFoundError(absl::StrCat("model: ", name,
                                          version == 0 ? "" : absl::StrCat(", version ", version),
                                          " is not loaded; ", Describe(versions)));
}

const ModelStatus* FindVersion(const Versions& versions, std::int64_t version) {
  const auto found = std::find_if(versions.begin(), versions.end(), [version](const auto& status) {
    return status.version == version;
  });
  return found == versions.end() ? nullptr : &*found;
}

// Puts `status` in its place among the versions. Version 0 stands for a model without any version
// and goes when there is one.
void Insert(Versions& versions, ModelStatus status) {
  std::erase_if(versions, [&status](const ModelStatus& old) {
    return old.version == status.version || old.version == 0;
  });
  const auto place = std::find_if(versions.begin(), versions.end(), [&status](const auto& other) {
    return other.version > status.version;
  });
  versions.insert(place, std::move(status));
}

}  // namespace

struct ModelRegistry::Impl {
  Impl(RegistryOptions registry_options, ModelBackend& model_backend, Metrics& all_metrics,
       Clock& steady_clock)
      : options(std::move(registry_options)),
        repository(options.root),
        backend(model_backend),
        metrics(all_metrics),
        clock(steady_clock) {}

  // What is known of a model at this moment; null when nothing is.
  std::shared_ptr<const Versions> Known(absl::string_view name) const {
    MutexLock lock(mutex);
    const auto found = models.find(name);
    return found == models.end() ? nullptr : found->second;
  }
  // Replaces it; by nothing when `versions` is empty.
  void Publish(const std::string& name, Versions versions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(load_mutex);
  absl::Status MakeRoom(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(load_mutex);

  absl::StatusOr<std::shared_ptr<const Model>> Build(const std::string& name, std::int64_t version);
  absl::StatusOr<ModelStatus> Load(const std::string& name, std::int64_t version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(load_mutex);
  absl::StatusOr<std::vector<std::int64_t>> Unload(const std::string& name, std::int64_t version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(load_mutex);
  void Record(ModelStatus status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(load_mutex);

  // Announces a change in the order in which changes happen; Deliver calls on_change for it.
  void Announce(const std::string& name, bool loaded) ABSL_EXCLUSIVE_LOCKS_REQUIRED(load_mutex) {
    MutexLock lock(announce_mutex);
    announced.emplace_back(name, loaded);
  }
  void Deliver();

  const RegistryOptions options;
  const Repository repository;
  ModelBackend& backend;
  Metrics& metrics;
  Clock& clock;

  // Serialises loads and unloads. Held while files are read and a backend prepares a model, which
  // can take seconds: nothing on a request's way takes it.
  Mutex load_mutex;

  std::int64_t known_versions ABSL_GUARDED_BY(load_mutex) = 0;  // Loaded or failed.

  mutable Mutex mutex;
  // Changes come under load_mutex too. shared: readers use the versions that they found while the
  // next are published.
  absl::flat_hash_map<std::string, std::shared_ptr<const Versions>> models ABSL_GUARDED_BY(mutex);

  Mutex announce_mutex;
  std::deque<std::pair<std::string, bool>> announced ABSL_GUARDED_BY(announce_mutex);
  bool delivering ABSL_GUARDED_BY(announce_mutex) = false;
};

absl::StatusOr<std::shared_ptr<const Model>> ModelRegistry::Impl::Build(const std::string& name,
                                                                        std::int64_t version) {
  absl::StatusOr<Repository::Files> files =
      repository.Read(name, version, options.max_parameter_bytes);
  if (!files.ok()) return files.status();
  absl::StatusOr<std::shared_ptr<Model>> model =
      Model::Create(name, version, std::move(files->config), std::move(files->parameters),
                    metrics.ForModel(name, version));
  if (!model.ok()) return model.status();
  absl::StatusOr<std::unique_ptr<BackendState>> state = backend.Prepare(**model);
  if (!state.ok()) return state.status();
  (*model)->set_backend_state(*std::move(state));
  return std::shared_ptr<const Model>(*std::move(model));
}

absl::StatusOr<ModelStatus> ModelRegistry::Impl::Load(const std::string& name,
                                                      std::int64_t version) {
  // What is neither in the repository nor known leaves no record: clients may ask for any name.
  const std::shared_ptr<const Versions> versions = Known(name);
  const ModelStatus* const before = versions == nullptr ? nullptr : FindVersion(*versions, version);
  const absl::Status there = repository.CheckModel(name);
  if (absl::IsNotFound(there) && before == nullptr) {
    return absl::NotFoundError(absl::StrCat("model: ", name, " is not in the repository"));
  }
  const bool is_broken = absl::IsInvalidArgument(there) || absl::IsPermissionDenied(there);
  if (!there.ok() && before == nullptr && (version != 0 || !is_broken)) {
    return About(name, version, there);
  }
  const std::vector<std::int64_t> present = repository.Versions(name);
  if (version == 0 && !present.empty()) return Load(name, present.back());
  ModelStatus status{name, version, before == nullptr ? nullptr : before->model, {}, {}};
  const TimePoint start = clock.Now();
  if (!there.ok() && !absl::IsNotFound(there)) {
    status.error = there;
  } else if (std::find(present.begin(), present.end(), version) == present.end()) {
    status.error = absl::NotFoundError(
        present.empty()
            ? "the repository holds no version: wanted a folder such as 1"
            : absl::StrCat("the repository holds versions ", absl::StrJoin(present, ", ")));
    if (version != 0 && before == nullptr) return About(name, version, status.error);
  }
  if (before == nullptr) {
    if (absl::Status room = MakeRoom(name); !room.ok()) return room;
  }
  if (status.error.ok()) {
    absl::StatusOr<std::shared_ptr<const Model>> model = Build(name, version);
    status.error = model.status();
    if (model.ok()) status.model = *std::move(model);
  }
  status.load_time = clock.Now() - start;
  Record(status);
  if (!status.error.ok()) return About(name, version, status.error);
  status.model->metrics().RecordLoad(status.load_time);
  Announce(name, true);
  return status;
}

void ModelRegistry::Impl::Record(ModelStatus status) {
  if (status.error.ok()) {
    spdlog::info("model {}, version {}: loaded in {:.1f} ms, {} parameters, {} bytes", status.name,
                 status.version, Milliseconds(status.load_time), status.model->parameters().size(),
                 ParameterBytes(*status.model));
  } else {
    spdlog::error("model {}, version {}: load failed{}: {}", status.name, status.version,
                  IsLoaded(status) ? ", the state before goes on serving" : "",
                  status.error.ToString());
  }
  const std::string name = status.name;
  const std::shared_ptr<const Versions> known = Known(name);
  Versions next = known == nullptr ? Versions() : *known;
  Insert(next, std::move(status));
  Publish(name, std::move(next));
}

void ModelRegistry::Impl::Publish(const std::string& name, Versions versions) {
  const auto count = static_cast<std::int64_t>(versions.size());
  auto fresh = count == 0 ? nullptr : std::make_shared<const Versions>(std::move(versions));
  {
    MutexLock lock(mutex);
    // Swapped, so that the old versions are released after the lock.
    if (fresh != nullptr) {
      models[name].swap(fresh);
    } else if (const auto found = models.find(name); found != models.end()) {
      fresh = std::move(found->second);
      models.erase(found);
    }
  }
  known_versions += count - (fresh == nullptr ? 0 : static_cast<std::int64_t>(fresh->size()));
}

// For one more version. The records of failed loads give way to it: whoever made the load has had
// the response.
absl::Status ModelRegistry::Impl::MakeRoom(const std::string& name) {
  if (known_versions < options.max_models) return absl::OkStatus();
  std::string other;
  Versions rest;
  {
    MutexLock lock(mutex);
    const auto failed = std::find_if(models.begin(), models.end(),
                                     [](const auto& entry) { return AnyFailed(*entry.second); });
    if (failed == models.end()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "models: ", known_versions, " are loaded, wanted at most ", options.max_models,
          " (--max_models); ", name, " can be loaded when another is unloaded"));
    }
    other = failed->first;
    rest = *failed->second;
  }
  std::erase_if(rest, [](const ModelStatus& status) { return !IsLoaded(status); });
  Publish(other, std::move(rest));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::int64_t>> ModelRegistry::Impl::Unload(const std::string& name,
                                                                      std::int64_t version) {
  const std::shared_ptr<const Versions> known = Known(name);
  if (known == nullptr) return Missing(name, version, nullptr);
  Versions versions = *known;
  if (version != 0 && FindVersion(versions, version) == nullptr) {
    return Missing(name, version, &versions);
  }
  std::vector<std::int64_t> unloaded;
  std::erase_if(versions, [&](const ModelStatus& status) {
    if (version != 0 && status.version != version) return false;
    if (IsLoaded(status)) unloaded.push_back(status.version);
    return true;
  });
  const bool still_loaded = AnyLoaded(versions);
  Publish(name, std::move(versions));
  for (const std::int64_t gone : unloaded) {
    spdlog::info("model {}, version {}: unloaded", name, gone);
  }
  if (!unloaded.empty()) Announce(name, still_loaded);
  return unloaded;
}

// Callers come here after the load mutex. One of them at a time delivers, also what others
// announced, so that calls neither overlap nor overtake each other and hold no lock.
void ModelRegistry::Impl::Deliver() {
  while (true) {
    std::pair<std::string, bool> change;
    {
      MutexLock lock(announce_mutex);
      if (delivering || announced.empty()) return;
      delivering = true;
      change = std::move(announced.front());
      announced.pop_front();
    }
    if (options.on_change) options.on_change(change.first, change.second);
    MutexLock lock(announce_mutex);
    delivering = false;
  }
}

ModelRegistry::ModelRegistry(RegistryOptions options, ModelBackend& backend, Metrics& metrics,
                             Clock& clock)
    : impl_(std::make_unique<Impl>(std::move(options), backend, metrics, clock)) {}

ModelRegistry::~ModelRegistry() = default;

absl::Status ModelRegistry::LoadAll() {
  const absl::StatusOr<std::vector<std::string>> names = impl_->repository.ModelNames();
  if (!names.ok()) return names.status();
  std::size_t done = 0;
  for (const std::string& name : *names) {
    {
      MutexLock lock(impl_->load_mutex);
      if (!impl_->MakeRoom(name).ok()) break;
    }
    // A failure is in the log and in List.
    static_cast<void>(Load(name, 0));
    ++done;
  }
  if (done < names->size()) {
    spdlog::error(
        "model repository: it holds {} models, --max_models is {}: {} of them, from {} "
        "on, are not loaded",
        names->size(), impl_->options.max_models, names->size() - done, (*names)[done]);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Model>> ModelRegistry::Find(absl::string_view name,
                                                                 std::int64_t version) const {
  const std::shared_ptr<const Versions> known = impl_->Known(name);
  if (known == nullptr) return Missing(name, version, nullptr);
  const Versions& versions = *known;
  const auto found =
      std::find_if(versions.rbegin(), versions.rend(), [version](const auto& status) {
        return IsLoaded(status) && (version == 0 || status.version == version);
      });
  if (found == versions.rend()) return Missing(name, version, &versions);
  return found->model;
}

absl::StatusOr<ModelStatus> ModelRegistry::Load(absl::string_view name, std::int64_t version) {
  if (absl::Status status = CheckRequest(name, version); !status.ok()) return status;
  absl::StatusOr<ModelStatus> result = [&] {
    MutexLock lock(impl_->load_mutex);
    return impl_->Load(std::string(name), version);
  }();
  impl_->Deliver();
  return result;
}

absl::StatusOr<std::vector<std::int64_t>> ModelRegistry::Unload(absl::string_view name,
                                                                std::int64_t version) {
  if (absl::Status status = CheckRequest(name, version); !status.ok()) return status;
  absl::StatusOr<std::vector<std::int64_t>> result = [&] {
    MutexLock lock(impl_->load_mutex);
    return impl_->Unload(std::string(name), version);
  }();
  impl_->Deliver();
  return result;
}

std::vector<ModelStatus> ModelRegistry::List() const {
  std::vector<std::shared_ptr<const Versions>> models;
  {
    MutexLock lock(impl_->mutex);
    models.reserve(impl_->models.size());
    for (const auto& [name, versions] : impl_->models) models.push_back(versions);
  }
  std::vector<ModelStatus> list;
  for (const auto& versions : models) list.insert(list.end(), versions->begin(), versions->end());
  // Stable: the versions of a model are in order already.
  std::stable_sort(list.begin(), list.end(),
                   [](const ModelStatus& a, const ModelStatus& b) { return a.name < b.name; });
  return list;
}

absl::StatusOr<ModelStatus> ModelRegistry::Get(absl::string_view name, std::int64_t version) const {
  const std::shared_ptr<const Versions> known = impl_->Known(name);
  if (known == nullptr) return Missing(name, version, nullptr);
  const Versions& versions = *known;
  const auto found = std::find_if(
      versions.rbegin(), versions.rend(),
      [version](const auto& status) { return version == 0 || status.version == version; });
  if (found == versions.rend()) return Missing(name, version, &versions);
  return *found;
}

}  // namespace normd
