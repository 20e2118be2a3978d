#include "server/model/registry.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mutex.h"
#include "server/model/change_queue.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

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

bool AnyFailed(const KnownVersions& versions) {
  return !std::all_of(versions.list.begin(), versions.list.end(), IsLoaded);
}

// Adds (or with -1 takes away) those of `versions`, null: none.
void Count(const KnownVersions* versions, std::int64_t sign, VersionCounts& counts) {
  if (versions == nullptr) return;
  for (const ModelStatus& status : versions->list) {
    if (IsLoaded(status)) counts.loaded += sign;
    if (!status.error.ok()) counts.failed += sign;
  }
}

}  // namespace

struct ModelRegistry::Impl {
  Impl(RegistryOptions registry_options, ModelBackend& model_backend, Metrics& all_metrics,
       Clock& steady_clock)
      : options(std::move(registry_options)),
        repository(options.roots),
        backend(model_backend),
        metrics(all_metrics),
        clock(steady_clock),
        changes(options.on_change) {}

  // What is known of a model at this moment; null when nothing is.
  std::shared_ptr<const KnownVersions> Known(absl::string_view name) const {
    MutexLock lock(mutex);
    const auto found = models.find(name);
    return found == models.end() ? nullptr : found->second;
  }
  // Replaces it; by nothing when `versions` is empty.
  void Publish(const std::string& name, KnownVersions versions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(load_mutex);
  absl::Status MakeRoom(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(load_mutex);

  absl::StatusOr<std::shared_ptr<const Model>> Build(const std::string& name, std::int64_t version);
  absl::StatusOr<ModelStatus> Load(const std::string& name, std::int64_t version)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(load_mutex);
  absl::StatusOr<ModelStatus> LoadWanted(const std::string& name,
                                         const std::vector<std::int64_t>& present)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(load_mutex);
  absl::StatusOr<std::vector<std::int64_t>> Unload(const std::string& name, std::int64_t version,
                                                   UnloadedBy by)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(load_mutex);
  absl::Status RecordUnwanted(const std::string& name, const absl::Status& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(load_mutex);
  void Record(ModelStatus status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(load_mutex);

  const RegistryOptions options;
  const Repository repository;
  ModelBackend& backend;
  Metrics& metrics;
  Clock& clock;

  // Serialises loads and unloads. Held while files are read and a backend prepares a model, which
  // can take seconds: nothing on a request's way takes it.
  Mutex load_mutex;

  std::int64_t known_versions ABSL_GUARDED_BY(load_mutex) = 0;  // Loaded or failed.
  VersionCounts counts ABSL_GUARDED_BY(load_mutex);
  std::deque<UnloadedVersion> unloaded_by_clients ABSL_GUARDED_BY(load_mutex);

  mutable Mutex mutex;
  // Changes come under load_mutex too. shared: readers use the versions that they found while the
  // next are published.
  absl::flat_hash_map<std::string, std::shared_ptr<const KnownVersions>> models
      ABSL_GUARDED_BY(mutex);

  // The same in the order of the names, for lists: to copy thousands takes longer than a request
  // should wait for `mutex`.
  mutable Mutex list_mutex;
  std::map<std::string, std::shared_ptr<const KnownVersions>> sorted ABSL_GUARDED_BY(list_mutex);
  std::uint64_t list_changes ABSL_GUARDED_BY(list_mutex) = 0;

  ChangeQueue changes;
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

absl::StatusOr<ModelStatus> ModelRegistry::Impl::LoadWanted(
    const std::string& name, const std::vector<std::int64_t>& present) {
  // What is wrong with the config is told by the load.
  const absl::StatusOr<v1::ModelConfig> config = repository.ReadConfig(name);
  std::vector<std::int64_t> wanted = {present.back()};
  if (config.ok()) wanted = WantedVersions(PlanOf(*config), present);
  if (wanted.empty()) return RecordUnwanted(name, NoVersionWanted(PlanOf(*config), present));
  absl::StatusOr<ModelStatus> result = Load(name, wanted.back());
  if (!result.ok()) return result;
  wanted.pop_back();
  // A failure is in the log and in List.
  for (const std::int64_t version : wanted) static_cast<void>(Load(name, version));
  return result;
}

// A model that serves has no such record: what serves stays.
absl::Status ModelRegistry::Impl::RecordUnwanted(const std::string& name,
                                                 const absl::Status& reason) {
  const std::shared_ptr<const KnownVersions> known = Known(name);
  if (known == nullptr || !known->AnyLoaded()) {
    if (known == nullptr || known->Find(0) == nullptr) {
      if (absl::Status room = MakeRoom(name); !room.ok()) return room;
    }
    Record({name, 0, nullptr, reason, {}, repository.FilesOf(name, 0)});
  }
  return absl::Status(reason.code(), absl::StrCat("model ", name, ": ", reason.message()));
}

absl::StatusOr<ModelStatus> ModelRegistry::Impl::Load(const std::string& name,
                                                      std::int64_t version) {
  // What is neither in the repository nor known leaves no record: clients may ask for any name.
  const std::shared_ptr<const KnownVersions> versions = Known(name);
  const ModelStatus* const before = versions == nullptr ? nullptr : versions->Find(version);
  absl::Status there = repository.CheckModel(name);
  if (absl::IsNotFound(there) && before == nullptr) {
    return absl::NotFoundError(absl::StrCat("model: ", name, " is not in the repository"));
  }
  const absl::StatusOr<std::vector<std::int64_t>> listed = repository.Versions(name);
  bool is_broken = absl::IsInvalidArgument(there) || absl::IsPermissionDenied(there);
  if (there.ok()) {
    there = listed.status();
    is_broken = !absl::IsNotFound(there);  // The model is there, whatever keeps it from a list.
  }
  if (!there.ok() && before == nullptr && (version != 0 || !is_broken)) {
    return About(name, version, there);
  }
  const std::vector<std::int64_t> present = listed.value_or(std::vector<std::int64_t>());
  if (version == 0 && !present.empty()) return LoadWanted(name, present);
  ModelStatus status{name, version, before == nullptr ? nullptr : before->model, {}, {}, {}, {}};
  status.files = repository.FilesOf(name, version);
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
  status.load_end = clock.Now();
  status.load_time = status.load_end - start;
  Record(status);
  if (!status.error.ok()) return About(name, version, status.error);
  status.model->metrics().RecordLoad(status.load_time);
  changes.Add(name, true);
  return status;
}

void ModelRegistry::Impl::Record(ModelStatus status) {
  const std::string name = status.name;
  const std::shared_ptr<const KnownVersions> known = Known(name);
  if (status.error.ok()) {
    spdlog::info("model {}, version {}: loaded in {:.1f} ms, {} parameters, {} bytes", name,
                 status.version, Milliseconds(status.load_time), status.model->parameters().size(),
                 ParameterBytes(*status.model));
  } else {
    metrics.ForRepository().RecordLoadFailure();
    // A load that is tried again and again fails in one line.
    const ModelStatus* const before = known == nullptr ? nullptr : known->Find(status.version);
    const bool known_failure = before != nullptr && before->error == status.error;
    spdlog::log(known_failure ? spdlog::level::debug : spdlog::level::err,
                "model {}, version {}: load failed{}: {}", name, status.version,
                IsLoaded(status) ? ", the state before goes on serving" : "",
                status.error.ToString());
  }
  KnownVersions next = known == nullptr ? KnownVersions() : *known;
  if (status.error.ok()) next.plan = PlanOf(status.model->config());
  next.Insert(std::move(status));
  Publish(name, std::move(next));
}

void ModelRegistry::Impl::Publish(const std::string& name, KnownVersions versions) {
  const auto count = static_cast<std::int64_t>(versions.list.size());
  auto fresh = count == 0 ? nullptr : std::make_shared<const KnownVersions>(std::move(versions));
  const KnownVersions* const added = fresh.get();
  {
    MutexLock lock(list_mutex);
    if (fresh != nullptr) {
      sorted[name] = fresh;
    } else {
      sorted.erase(name);
    }
    ++list_changes;
  }
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
  // After the insertions, which may find no memory.
  Count(added, 1, counts);
  Count(fresh.get(), -1, counts);
  known_versions += count - (fresh == nullptr ? 0 : static_cast<std::int64_t>(fresh->list.size()));
  metrics.ForRepository().SetVersions(counts);
}

// Makes room for one more version. The records of failed loads give way to it: their callers have
// had the response.
absl::Status ModelRegistry::Impl::MakeRoom(const std::string& name) {
  if (known_versions < options.max_models) return absl::OkStatus();
  std::string other;
  KnownVersions rest;
  {
    MutexLock lock(list_mutex);
    const auto failed = std::find_if(sorted.begin(), sorted.end(),
                                     [](const auto& entry) { return AnyFailed(*entry.second); });
    if (failed == sorted.end()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "models: ", known_versions, " are loaded, wanted at most ", options.max_models,
          " (--max_models); ", name, " can be loaded when another is unloaded"));
    }
    other = failed->first;
    rest = *failed->second;
  }
  std::erase_if(rest.list, [](const ModelStatus& status) { return !IsLoaded(status); });
  Publish(other, std::move(rest));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::int64_t>> ModelRegistry::Impl::Unload(const std::string& name,
                                                                      std::int64_t version,
                                                                      UnloadedBy by) {
  const std::shared_ptr<const KnownVersions> known = Known(name);
  if (known == nullptr) return MissingVersion(name, version, nullptr);
  KnownVersions versions = *known;
  if (version != 0 && versions.Find(version) == nullptr) {
    return MissingVersion(name, version, &versions);
  }
  std::vector<std::int64_t> unloaded;
  std::erase_if(versions.list, [&](const ModelStatus& status) {
    if (version != 0 && status.version != version) return false;
    if (IsLoaded(status)) unloaded.push_back(status.version);
    return true;
  });
  const bool still_loaded = versions.AnyLoaded();
  Publish(name, std::move(versions));
  for (const std::int64_t gone : unloaded) {
    spdlog::info("model {}, version {}: unloaded", name, gone);
    if (by != UnloadedBy::kClient) continue;
    unloaded_by_clients.push_back({name, gone, known->Find(gone)->files});
    if (std::cmp_greater(unloaded_by_clients.size(), options.max_models)) {
      unloaded_by_clients.pop_front();
    }
  }
  if (!unloaded.empty()) changes.Add(name, still_loaded);
  return unloaded;
}

ModelRegistry::ModelRegistry(RegistryOptions options, ModelBackend& backend, Metrics& metrics,
                             Clock& clock)
    : impl_(std::make_unique<Impl>(std::move(options), backend, metrics, clock)) {}

ModelRegistry::~ModelRegistry() = default;

bool ModelRegistry::LoadModelAtStart(const std::string& name) {
  {
    MutexLock lock(impl_->load_mutex);
    if (!impl_->MakeRoom(name).ok()) return false;
  }
  const auto present = impl_->repository.Versions(name);
  const absl::StatusOr<v1::ModelConfig> config = impl_->repository.ReadConfig(name);
  // A failure is in the log and in List. With a config that cannot be read, one is enough.
  if (!present.ok() || present->empty() || !config.ok())
    return static_cast<void>(Load(name, 0)), true;
  const VersionPlan plan = PlanOf(*config);
  const VersionChoice choice = ChooseVersions(plan, *present, [&](std::int64_t version) {
    return Load(name, version).ok() ? VersionOutcome::kServes : VersionOutcome::kFails;
  });
  if (choice.held.empty()) Load(name, 0).status().IgnoreError();
  return true;
}

absl::Status ModelRegistry::LoadAll() {
  const absl::StatusOr<std::vector<std::string>> names = impl_->repository.ModelNames();
  if (!names.ok()) return names.status();
  std::size_t done = 0;
  while (done < names->size() && LoadModelAtStart((*names)[done])) ++done;
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
  const std::shared_ptr<const KnownVersions> known = impl_->Known(name);
  const ModelStatus* const found = known == nullptr ? nullptr : known->FindLoaded(version);
  if (found == nullptr) return MissingVersion(name, version, known.get());
  return found->model;
}

absl::StatusOr<std::shared_ptr<const Model>> ModelRegistry::FindForRequest(
    absl::string_view name, std::int64_t version) const {
  const std::shared_ptr<const KnownVersions> known = impl_->Known(name);
  const ModelStatus* const found = known == nullptr ? nullptr : known->Choose(version);
  if (found == nullptr) return MissingVersion(name, version, known.get());
  return found->model;
}

absl::StatusOr<std::int64_t> ModelRegistry::VersionOfAlias(absl::string_view name,
                                                           absl::string_view alias) const {
  const std::shared_ptr<const KnownVersions> known = impl_->Known(name);
  if (known == nullptr) return MissingAlias(name, alias, nullptr);
  for (const auto& [text, version] : known->plan.aliases) {
    if (text == alias) return version;
  }
  return MissingAlias(name, alias, known.get());
}

const Repository& ModelRegistry::repository() const { return impl_->repository; }

absl::StatusOr<ModelStatus> ModelRegistry::Load(absl::string_view name, std::int64_t version) {
  if (absl::Status status = CheckNameAndVersion(name, version); !status.ok()) return status;
  absl::StatusOr<ModelStatus> result = [&] {
    MutexLock lock(impl_->load_mutex);
    return impl_->Load(std::string(name), version);
  }();
  impl_->changes.Deliver();
  return result;
}

std::vector<std::int64_t> ModelRegistry::TakeConfig(const std::string& name,
                                                    const v1::ModelConfig& config,
                                                    const std::optional<FileState>& file) {
  MutexLock lock(impl_->load_mutex);
  const std::shared_ptr<const KnownVersions> known = impl_->Known(name);
  if (known == nullptr) return {};
  KnownVersions next = *known;
  std::vector<std::int64_t> taken;
  for (ModelStatus& status : next.list) {
    if (!IsLoaded(status) || !status.error.ok() || status.files.config == file) continue;
    if (!DifferInVersionsAlone(status.model->config(), config)) continue;
    status.model = Model::WithConfig(*status.model, config);
    status.files.config = file;
    taken.push_back(status.version);
  }
  if (taken.empty()) return taken;
  next.plan = PlanOf(config);
  impl_->Publish(name, std::move(next));
  spdlog::info("model {}: a new config, for versions {} without a load", name,
               absl::StrJoin(taken, ", "));
  return taken;
}

absl::StatusOr<std::vector<std::int64_t>> ModelRegistry::Unload(absl::string_view name,
                                                                std::int64_t version,
                                                                UnloadedBy by) {
  if (absl::Status status = CheckNameAndVersion(name, version); !status.ok()) return status;
  absl::StatusOr<std::vector<std::int64_t>> result = [&] {
    MutexLock lock(impl_->load_mutex);
    return impl_->Unload(std::string(name), version, by);
  }();
  impl_->changes.Deliver();
  return result;
}

std::optional<UnloadedVersion> ModelRegistry::TakeUnloaded() {
  MutexLock lock(impl_->load_mutex);
  std::deque<UnloadedVersion>& unloaded = impl_->unloaded_by_clients;
  if (unloaded.empty()) return std::nullopt;
  UnloadedVersion first = std::move(unloaded.front());
  unloaded.pop_front();
  return first;
}

std::vector<ModelStatus> ModelRegistry::List() const {
  std::vector<std::shared_ptr<const KnownVersions>> models;
  {
    MutexLock lock(impl_->list_mutex);
    models.reserve(impl_->sorted.size());
    for (const auto& [name, versions] : impl_->sorted) models.push_back(versions);
  }
  std::vector<ModelStatus> list;
  for (const auto& versions : models) {
    list.insert(list.end(), versions->list.begin(), versions->list.end());
  }
  return list;
}

std::uint64_t ModelRegistry::changes() const {
  MutexLock lock(impl_->list_mutex);
  return impl_->list_changes;
}

absl::StatusOr<ModelStatus> ModelRegistry::Get(absl::string_view name, std::int64_t version) const {
  const std::shared_ptr<const KnownVersions> known = impl_->Known(name);
  if (known == nullptr) return MissingVersion(name, version, nullptr);
  const ModelStatus* const found = version == 0 ? &known->list.back() : known->Find(version);
  if (found == nullptr) return MissingVersion(name, version, known.get());
  return *found;
}

std::vector<ModelStatus> ModelRegistry::ListOf(absl::string_view name) const {
  const std::shared_ptr<const KnownVersions> known = impl_->Known(name);
  return known == nullptr ? std::vector<ModelStatus>() : known->list;
}

}  // namespace normd
