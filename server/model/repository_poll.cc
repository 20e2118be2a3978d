#include "server/model/repository_poll.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

constexpr Duration kRetryInterval = std::chrono::minutes(1);
// How many looks it takes to see that something has come to rest, and the time between them.
constexpr int kLooksTogether = 2;
constexpr Duration kRest = std::chrono::seconds(1);

// Whether a load may succeed although the files are the same.
bool MayPass(const absl::Status& status) {
  return !absl::IsInvalidArgument(status) && !absl::IsFailedPrecondition(status) &&
         !absl::IsNotFound(status);
}

std::vector<std::int64_t> VersionsIn(const RepositoryScan::Model& folder) {
  std::vector<std::int64_t> versions;
  for (const auto& [version, files] : folder.versions) versions.push_back(version);
  return versions;
}

bool Contains(const std::vector<std::int64_t>& versions, std::int64_t version) {
  return std::find(versions.begin(), versions.end(), version) != versions.end();
}

bool Has(const RepositoryScan::Model& folder, std::int64_t version) {
  return folder.versions.count(version) != 0;
}

// The config as it was seen; nothing where there was no version, or no config.
std::optional<FileState> ConfigIn(const RepositoryScan::Model& folder) {
  if (folder.versions.empty()) return std::nullopt;
  return folder.versions.begin()->second.config;
}

std::optional<ModelStatus> StatusOf(const ModelRegistry& registry, const std::string& name,
                                    std::int64_t version) {
  for (ModelStatus& status : registry.ListOf(name)) {
    if (status.version == version) return std::move(status);
  }
  return std::nullopt;
}

}  // namespace

RepositoryPoll::RepositoryPoll(ModelRegistry& registry, Metrics& metrics, const Clock& clock)
    : registry_(registry), metrics_(metrics.ForRepository()), clock_(clock) {}

RepositoryPoll::~RepositoryPoll() {
  if (!thread_.joinable()) return;
  stopping_.store(true, std::memory_order_relaxed);
  {
    MutexLock lock(mutex_);
    ending_ = true;
    wake_.SignalAll();
  }
  thread_.join();
}

void RepositoryPoll::Watch(Duration interval) {
  thread_ = std::thread([this, interval] { Run(interval); });
  pthread_setname_np(thread_.native_handle(), "models");
}

void RepositoryPoll::LookSoon() {
  MutexLock lock(mutex_);
  looks_asked_for_ = kLooksTogether;
  wake_.SignalAll();
}

void RepositoryPoll::Run(Duration interval) {
  // The first look of all tells what a later one finds new.
  do {
    try {
      Look();
    } catch (const std::bad_alloc&) {
      // The next look may find memory.
    }
  } while (WaitForLook(interval));
}

bool RepositoryPoll::WaitForLook(Duration interval) {
  // From the end of a look, so that slow ones do not follow each other without a pause.
  const TimePoint end = std::chrono::steady_clock::now();
  const TimePoint regular = interval > Duration(0) ? end + interval : kNever;
  MutexLock lock(mutex_);
  for (;;) {
    TimePoint until = regular;
    if (looks_asked_for_ > 0) {
      const bool first = looks_asked_for_ == kLooksTogether;
      until = first ? end : std::min(regular, end + kRest);
    }
    if (ending_ || std::chrono::steady_clock::now() >= until) break;
    wake_.WaitUntil(mutex_, until);
  }
  retries_all_ = looks_asked_for_ == kLooksTogether;
  looks_asked_for_ = std::max(looks_asked_for_ - 1, 0);
  return !ending_;
}

// What the start has loaded is the plan's.
void RepositoryPoll::Begin() {
  models_.clear();  // An earlier look may have found no memory.
  for (const ModelStatus& status : registry_.List()) {
    Model& model = models_[status.name];
    if (status.version != 0) model.held.push_back(status.version);
    if (status.version == 0) model.unwanted = status.error;
  }
  begun_ = true;
}

void RepositoryPoll::Look() {
  if (!begun_) Begin();
  room_came_ = std::exchange(unloaded_, false);
  // A client may have loaded and unloaded a version between two looks.
  while (std::optional<UnloadedVersion> unloaded = registry_.TakeUnloaded()) {
    room_came_ = true;
    if (StatusOf(registry_, unloaded->name, unloaded->version)) continue;  // It is back.
    models_[unloaded->name].judged[unloaded->version] = {std::move(unloaded->files),
                                                         absl::OkStatus(), clock_.Now()};
  }
  RepositoryScan scan = registry_.repository().Scan();
  const bool complete = CheckRoots(scan);
  for (auto& [name, folder] : scan.models) {
    if (stopping_.load(std::memory_order_relaxed)) return;
    Model& model = models_[name];
    const RepositoryScan::Model before = std::exchange(model.folder, std::move(folder));
    model.there = true;
    Follow(name, model, before);
  }
  // What a root that is not there has held is not known to be gone.
  for (auto entry = models_.begin(); complete && entry != models_.end();) {
    auto& [name, model] = *entry;
    if (scan.models.count(name) != 0 || std::exchange(model.there, false)) {
      ++entry;
      continue;
    }
    if (!registry_.ListOf(name).empty()) {
      spdlog::info("model {}: it is no longer in the repository", name);
      Unload(name, 0);
    }
    entry = models_.erase(entry);
  }
  metrics_.RecordPoll(complete);
}

void RepositoryPoll::Unload(const std::string& name, std::int64_t version) {
  // A client may have been first.
  registry_.Unload(name, version, UnloadedBy::kRepository).status().IgnoreError();
  unloaded_ = true;
}

// False when a root's models are not known; the log says so once.
bool RepositoryPoll::CheckRoots(const RepositoryScan& scan) {
  roots_.resize(scan.roots.size());
  bool complete = true;
  for (std::size_t i = 0; i < roots_.size(); ++i) {
    const RepositoryScan::Root& now = scan.roots[i];
    Root& root = roots_[i];
    std::string trouble(now.status.message());
    if (now.status.ok() && now.models > 0) root.device = now.device;
    if (now.status.ok() && now.models == 0 && root.device != 0 && root.device != now.device) {
      trouble = absl::StrCat("model repository: \"", Printable(now.path),
                             "\" is empty and on another file system than before");
    }
    complete &= trouble.empty();
    if (trouble == root.trouble) continue;
    if (trouble.empty()) {
      spdlog::info("model repository: \"{}\" is there again", Printable(now.path));
    } else {
      spdlog::error("{}; its models serve on", trouble);
    }
    root.trouble = std::move(trouble);
  }
  return complete;
}

void RepositoryPoll::Follow(const std::string& name, Model& model,
                            const RepositoryScan::Model& before) {
  if (!model.folder.status.ok()) return TellOfFolder(name, model, before);
  if (std::exchange(model.told, false)) ForgetFailures(name, model);
  RefreshPlan(name, model, before);
  const std::vector<std::int64_t> present = VersionsIn(model.folder);
  if (!model.plan && !present.empty()) return;
  const VersionChoice choice =
      ChooseVersions(model.plan.value_or(VersionPlan()), present,
                     [&](std::int64_t version) { return Judge(name, model, before, version); });
  Retire(name, model, before, choice);
  // A version that one look does not find may be on its way.
  if (present != VersionsIn(before)) return;
  const bool wants_none = choice.held.empty() && !present.empty() && model.plan.has_value();
  TellOfUnwanted(name, model,
                 wants_none ? NoVersionWanted(*model.plan, present) : absl::OkStatus());
}

void RepositoryPoll::TellOfUnwanted(const std::string& name, Model& model,
                                    const absl::Status& unwanted) {
  if (std::exchange(model.unwanted, unwanted) == unwanted || unwanted.ok()) return;
  const absl::Status status = registry_.Load(name, 0).status();
  // The registry tells of those that it keeps a record of.
  if (!StatusOf(registry_, name, 0)) spdlog::error("{}", status.ToString());
}

// What failed because of the folder is worth another load.
void RepositoryPoll::ForgetFailures(const std::string& name, Model& model) {
  for (const ModelStatus& status : registry_.ListOf(name)) {
    if (!status.error.ok()) model.judged[status.version] = {};
  }
}

// A folder that cannot be taken leaves what it held as it is, with the reason in each version's
// record.
void RepositoryPoll::TellOfFolder(const std::string& name, Model& model,
                                  const RepositoryScan::Model& before) {
  model.folder.versions = before.versions;  // As far as anybody knows.
  if (model.told || before.status != model.folder.status) return;
  model.told = true;
  spdlog::error("{}", std::string(model.folder.status.message()));
  std::vector<std::int64_t> known;
  for (const ModelStatus& status : registry_.ListOf(name)) known.push_back(status.version);
  if (known.empty()) known.push_back(0);
  for (const std::int64_t version : known) registry_.Load(name, version).status().IgnoreError();
}

void RepositoryPoll::RefreshPlan(const std::string& name, Model& model,
                                 const RepositoryScan::Model& before) {
  const std::optional<FileState> file = ConfigIn(model.folder);
  const bool is_new = !model.plan || file != model.plan_file;
  if (!is_new || model.folder.versions.empty() || before.versions.empty()) return;
  if (ConfigIn(before) != file) return;
  const absl::StatusOr<v1::ModelConfig> config = registry_.repository().ReadConfig(name);
  // What is wrong with it is told by the loads.
  if (config.ok()) {
    model.plan = PlanOf(*config);
    for (const std::int64_t version : registry_.TakeConfig(name, *config, file)) {
      const auto judged = model.judged.find(version);
      if (judged != model.judged.end()) judged->second.files.config = file;
    }
  } else if (!model.plan) {
    model.plan = VersionPlan();
  }
  if (config.ok() || !MayPass(config.status())) model.plan_file = file;
}

VersionOutcome RepositoryPoll::Judge(const std::string& name, Model& model,
                                     const RepositoryScan::Model& before, std::int64_t version) {
  const VersionFiles& files = model.folder.versions.at(version);
  const std::optional<ModelStatus> known = StatusOf(registry_, name, version);
  const bool serves = known && known->model != nullptr;
  const VersionOutcome as_it_is = serves ? VersionOutcome::kServes : VersionOutcome::kFails;
  const auto judged = model.judged.find(version);
  if (judged != model.judged.end() && judged->second.files == files) {
    if (judged->second.status.ok()) {
      return serves ? VersionOutcome::kServes : VersionOutcome::kUnloaded;
    }
    const bool is_due =
        retries_all_ || room_came_ || clock_.Now() >= judged->second.at + kRetryInterval;
    if (!is_due || !MayPass(judged->second.status)) return as_it_is;
  } else if (judged == model.judged.end() && known && known->files == files) {
    // By the start, or by a client.
    model.judged[version] = {files, known->error, clock_.Now()};
    return as_it_is;
  } else {
    const auto rested = before.versions.find(version);
    const bool is_settled = rested != before.versions.end() && rested->second == files;
    if (!is_settled || stopping_.load(std::memory_order_relaxed)) {
      return serves ? VersionOutcome::kServes : VersionOutcome::kUnsettled;
    }
  }
  const absl::Status status = registry_.Load(name, version).status();
  // The registry tells of those that it keeps a record of.
  const bool is_known = known || StatusOf(registry_, name, version);
  const bool is_told = judged != model.judged.end() && judged->second.status == status;
  if (!status.ok() && !is_known && !is_told) {
    spdlog::error("model {}, version {}: not loaded: {}", name, version, status.ToString());
  }
  model.judged[version] = {files, status, clock_.Now()};
  return status.ok() || serves ? VersionOutcome::kServes : VersionOutcome::kFails;
}

void RepositoryPoll::Retire(const std::string& name, Model& model,
                            const RepositoryScan::Model& before, const VersionChoice& choice) {
  std::map<std::int64_t, bool> known;  // Whether each serves.
  for (const ModelStatus& status : registry_.ListOf(name)) {
    if (status.version != 0) known[status.version] = status.model != nullptr;
  }
  std::set<std::int64_t> leaving(model.held.begin(), model.held.end());
  for (const auto& [version, serves] : known) {
    if (!Has(model.folder, version)) leaving.insert(version);
  }
  for (const auto& [version, judged] : model.judged) {
    if (!Has(model.folder, version)) leaving.insert(version);
  }
  const bool none_left = model.folder.versions.empty() && before.versions.empty();
  model.held = choice.held;
  std::erase_if(model.outliving, [&](std::int64_t version) {
    return Has(model.folder, version) || known.count(version) == 0;
  });
  for (const std::int64_t version : leaving) {
    if (Contains(choice.held, version)) continue;
    const bool is_there = Has(model.folder, version);
    // One look that does not find it may have come between an unlink and a rename.
    const bool is_gone = !is_there && !Has(before, version);
    const auto found = known.find(version);
    const bool serves = found != known.end() && found->second;
    const bool may_go =
        is_there ? choice.may_retire : is_gone && (choice.may_vanish || none_left || !serves);
    if (!may_go) {
      model.held.push_back(version);
      if (is_gone && model.outliving.insert(version).second) {
        spdlog::warn(
            "model {}, version {}: it is no longer in the repository, and serves on until another "
            "version does",
            name, version);
      }
      continue;
    }
    // What failed is not tried again should it be wanted as it is.
    const auto judged = model.judged.find(version);
    if (judged != model.judged.end() && !(is_there && !judged->second.status.ok())) {
      model.judged.erase(judged);
    }
    if (found == known.end()) continue;
    spdlog::info("model {}, version {}: {}", name, version,
                 is_there ? "its version_policy does not want it any more"
                          : "it is no longer in the repository");
    Unload(name, version);
  }
}

}  // namespace normd
