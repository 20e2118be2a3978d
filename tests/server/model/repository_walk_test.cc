// A model's folder through every short sequence of changes, and through long random ones: what
// serves stays until something else does.

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/server/model/repository_poll_fixture.h"

namespace normd {
namespace {

namespace fs = std::filesystem;

constexpr int kVersions = 3;

enum class File { kMissing, kGood, kBroken };

// The model's folder at one moment. No config: the folder is gone.
struct Folder {
  const char* config = "good";
  File versions[kVersions] = {File::kGood, File::kGood, File::kMissing};

  std::string name() const {
    std::string name(config);
    for (const File file : versions) absl::StrAppend(&name, "-", static_cast<int>(file));
    return name;
  }
  bool HasAny() const {
    for (const File file : versions) {
      if (config != nullptr && file != File::kMissing) return true;
    }
    return false;
  }
};

constexpr const char* kConfigs[][2] = {
    {"good", ""},
    {"broken", "nope"},
    {"both", "version_policy { latest { num_versions: 2 } }"},
    {"list", "version_policy { specific { versions: [2] } }"},
    {"canary", "canary { version: 2 percent: 50 }"},
};

// What may happen between two looks. A client's loads and unloads are changes too.
struct Change {
  enum What { kConfig, kVersion, kFolder, kLoad, kUnload } what;
  const char* config = nullptr;
  int version = 0;
  File file = File::kMissing;

  std::string name() const {
    switch (what) {
      case kConfig: return absl::StrCat("config ", config);
      case kVersion: return absl::StrCat("version ", version, " ", static_cast<int>(file));
      case kFolder: return "folder gone";
      case kLoad: return absl::StrCat("load ", version);
      case kUnload: return absl::StrCat("unload ", version);
    }
    return "";
  }
};

std::vector<Change> AllChanges() {
  std::vector<Change> changes = {{Change::kFolder}, {Change::kVersion, nullptr, 2, File::kBroken}};
  for (const auto& config : kConfigs) changes.push_back({Change::kConfig, config[0]});
  for (int version = 1; version <= kVersions; ++version) {
    for (const File file : {File::kMissing, File::kGood}) {
      changes.push_back({Change::kVersion, nullptr, version, file});
    }
    if (version == kVersions) continue;
    changes.push_back({Change::kLoad, nullptr, version});
    changes.push_back({Change::kUnload, nullptr, version});
  }
  return changes;
}

// Every folder is there from the start, and they share their files, so a change is an exchange of
// the model's link: no file is new, and none is read twice for being young.
class RepositoryWalkTest : public RepositoryPollTest {
 protected:
  void SetUp() override {
    level_ = spdlog::get_level();
    spdlog::set_level(spdlog::level::off);
    for (const auto& [name, fields] : kConfigs) {
      dir_.Write(absl::StrCat(".all/files/", name), absl::StrCat(kConfig, " ", fields));
    }
    for (int version = 1; version <= kVersions + 1; ++version) {
      dir_.Write(absl::StrCat(".all/files/", version, "-1"), Weights(static_cast<float>(version)));
      dir_.Write(absl::StrCat(".all/files/", version, "-2"), "broken");
    }
    for (const auto& config : kConfigs) {
      for (int files = 0; files < 27; ++files) {
        MakeFolder({config[0], {File(files % 3), File(files / 3 % 3), File(files / 9)}});
      }
    }
    fs::create_directories(Path(".all/last/4"));
    fs::create_hard_link(Path(".all/files/good"), Path(".all/last/config.textproto"));
    fs::create_hard_link(Path(".all/files/4-1"), Path(".all/last/4/params.safetensors"));
  }
  void TearDown() override { spdlog::set_level(level_); }

  void MakeFolder(const Folder& folder) {
    const std::string path = Path(".all/" + folder.name());
    fs::create_directories(path);
    fs::create_hard_link(Path(absl::StrCat(".all/files/", folder.config)),
                         path + "/config.textproto");
    for (int i = 0; i < kVersions; ++i) {
      if (folder.versions[i] == File::kMissing) continue;
      const std::string version = absl::StrCat(path, "/", i + 1);
      fs::create_directory(version);
      fs::create_hard_link(
          Path(absl::StrCat(".all/files/", i + 1, "-", static_cast<int>(folder.versions[i]))),
          version + "/params.safetensors");
    }
  }
  void LinkTo(const std::string& name) {
    fs::create_symlink(".all/" + name, Path(".link"));
    fs::rename(Path(".link"), Path("m"));
  }

  void Begin() {
    folder_ = {};
    LinkTo(folder_.name());
    poll_ = nullptr;
    registry_ = nullptr;
    Start();
    done_.clear();
  }
  void Apply(const Change& change) {
    done_.push_back(change.name());
    switch (change.what) {
      case Change::kLoad: registry().Load("m", change.version).IgnoreError(); return;
      case Change::kUnload: registry().Unload("m", change.version).IgnoreError(); return;
      case Change::kFolder: folder_.config = nullptr; break;
      case Change::kConfig: folder_.config = change.config; break;
      case Change::kVersion: folder_.versions[change.version - 1] = change.file; break;
    }
    if (folder_.config == nullptr) {
      fs::remove(Path("m"));
    } else {
      LinkTo(folder_.name());
    }
  }
  // Returns whether it held.
  [[nodiscard]] bool LookAndCheck(int looks) {
    for (int i = 0; i < looks; ++i) {
      const bool served = registry().Find("m", 0).ok();
      Look();
      if (!served || registry().Find("m", 0).ok() || !folder_.HasAny()) continue;
      ADD_FAILURE() << "nothing serves after: " << absl::StrJoin(done_, ", ")
                    << "; known: " << absl::StrJoin(Known(), ", ");
      return false;
    }
    return true;
  }
  // Whatever was kept goes when a good version has come.
  [[nodiscard]] bool EndsWithTheLast() {
    LinkTo("last");
    Look(3);
    if (Known() == std::vector<std::string>{"m/4"}) return true;
    ADD_FAILURE() << absl::StrJoin(Known(), ", ") << " after: " << absl::StrJoin(done_, ", ");
    return false;
  }

  Folder folder_;
  std::vector<std::string> done_;
  spdlog::level::level_enum level_ = spdlog::level::info;
};

TEST_F(RepositoryWalkTest, WhatServesStaysThroughEveryShortSequence) {
  const std::vector<Change> changes = AllChanges();
  for (const Change& first : changes) {
    for (const Change& second : changes) {
      for (const Change& third : changes) {
        Begin();
        for (const Change* change : {&first, &second, &third}) {
          Apply(*change);
          if (!LookAndCheck(2)) return;
        }
      }
    }
  }
}

TEST_F(RepositoryWalkTest, WhatServesStaysThroughLongRandomSequences) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<Change> changes = AllChanges();
  for (int round = 0; round < 100; ++round) {
    Begin();
    for (int i = 0; i < 50; ++i) {
      Apply(changes[random() % changes.size()]);
      if (!LookAndCheck(static_cast<int>(random() % 4))) return;
    }
    if (!EndsWithTheLast()) return;
  }
}

}  // namespace
}  // namespace normd
