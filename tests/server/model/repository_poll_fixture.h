// A repository that a RepositoryPoll follows.

#ifndef NORMD_TESTS_SERVER_MODEL_REPOSITORY_POLL_FIXTURE_H_
#define NORMD_TESTS_SERVER_MODEL_REPOSITORY_POLL_FIXTURE_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "server/model/repository_poll.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/server/model/registry_fixture.h"

namespace normd {

// The lines that are logged at the level of an error while this lives.
class ErrorLog {
 public:
  ErrorLog() : before_(spdlog::default_logger()) {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    sink->set_level(spdlog::level::err);
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("", std::move(sink)));
  }
  ~ErrorLog() { spdlog::set_default_logger(before_); }
  std::vector<std::string> lines() const {
    return absl::StrSplit(text_.str(), '\n', absl::SkipEmpty());
  }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_;
};

class RepositoryPollTest : public ModelRegistryTest {
 protected:
  // The server has started.
  void Start() {
    ASSERT_TRUE(registry().LoadAll().ok());
    poll_ = std::make_unique<RepositoryPoll>(registry(), metrics_, clock_);
    poll_->Look();
  }
  void Look(int times = 1) {
    for (int i = 0; i < times; ++i) poll_->Look();
  }
  std::string Path(const std::string& path) const { return dir_.path() + "/" + path; }
  void WriteConfig(const std::string& more) {
    // Another file, as every change of a moment ago has other times.
    dir_.Write("m/config.new", absl::StrCat(kConfig, " ", more));
    std::filesystem::rename(Path("m/config.new"), Path("m/config.textproto"));
  }
  float Served(const std::string& name = "m", std::int64_t version = 0) {
    const auto model = registry().Find(name, version);
    return model.ok() ? FirstWeight(**model) : -1;
  }
  double Metric(const std::string& series) {
    const std::string scrape = metrics_.Scrape();
    for (const absl::string_view line : absl::StrSplit(scrape, '\n')) {
      if (absl::StartsWith(line, series + " ")) {
        return std::stod(std::string(line.substr(series.size() + 1)));
      }
    }
    return -1;
  }

  std::unique_ptr<RepositoryPoll> poll_;
};

}  // namespace normd

#endif  // NORMD_TESTS_SERVER_MODEL_REPOSITORY_POLL_FIXTURE_H_
