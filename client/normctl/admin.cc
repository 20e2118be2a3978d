// The commands that show and change the server's state.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/normctl/command.h"
#include "client/normctl/print.h"
#include "nlohmann/json.hpp"

namespace normd::client {
namespace {

const char kServiceName[] = "normd.v1.NormService";

class HealthCommand final : public Command {
 public:
  const char* name() const override { return "health"; }
  const char* summary() const override { return "exits with 0 if the server (or a model) serves"; }
  bool HasDefaultTimeout() const override { return !watch_; }

  void AddFlags(FlagSet& flags) override {
    flags.Add("service", &service_, "NAME", "Health name to ask for; empty is the whole server.");
    flags.Add("model", &model_, "MODEL", "Asks for this model's health.");
    flags.Add("watch", &watch_, "", "Prints each change until interrupted.");
  }
  absl::Status Check(absl::Span<const std::string> /*arguments*/) const override {
    if (service_.empty() || model_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("--service and --model: wanted one of them");
  }

  absl::Status Run(const Context& context) override {
    const std::string service = model_.empty() ? service_ : absl::StrCat(kServiceName, "/", model_);
    if (watch_) {
      return context.client->WatchHealth(
          service,
          [&](HealthStatus status) {
            Print(context, service, status);
            return context.out->good();
          },
          context.timeout);
    }
    const absl::StatusOr<HealthStatus> status =
        context.client->CheckHealth(service, context.timeout);
    if (!status.ok()) return status.status();
    Print(context, service, *status);
    if (*status == HealthStatus::kServing) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("health is ", Name(*status)));
  }

 private:
  static void Print(const Context& context, const std::string& service, HealthStatus status) {
    if (context.json) {
      *context.out << nlohmann::json{{"service", service}, {"status", Name(status)}} << std::endl;
    } else {
      *context.out << Name(status) << std::endl;
    }
  }

  std::string service_;
  std::string model_;
  bool watch_ = false;
};

class ModelsCommand final : public Command {
 public:
  const char* name() const override { return "models"; }
  const char* summary() const override { return "lists every version, loaded or failed to load"; }

  absl::Status Run(const Context& context) override {
    const auto models = context.client->ListModels(context.timeout);
    if (!models.ok()) return models.status();
    if (context.json) {
      PrintJson(*models, *context.out);
    } else {
      PrintModels(*models, *context.out);
    }
    return absl::OkStatus();
  }
};

class InfoCommand final : public Command {
 public:
  const char* name() const override { return "info"; }
  const char* summary() const override { return "tells the server's build, lanes and limits"; }

  absl::Status Run(const Context& context) override {
    const auto info = context.client->GetServerInfo(context.timeout);
    if (!info.ok()) return info.status();
    if (context.json) {
      PrintJson(*info, *context.out);
    } else {
      PrintServerInfo(*info, *context.out);
    }
    return absl::OkStatus();
  }
};

class RegionsCommand final : public Command {
 public:
  const char* name() const override { return "regions"; }
  const char* summary() const override { return "lists the memory that clients share"; }

  absl::Status Run(const Context& context) override {
    const auto regions = context.client->ListSharedMemory(context.timeout);
    if (!regions.ok()) return regions.status();
    if (context.json) {
      PrintJson(*regions, *context.out);
    } else {
      PrintRegions(*regions, *context.out);
    }
    return absl::OkStatus();
  }
};

class UnregisterCommand final : public Command {
 public:
  const char* name() const override { return "unregister"; }
  const char* arguments() const override { return "NAME..."; }
  const char* summary() const override { return "unregisters memory that clients share"; }
  bool takes_further_arguments() const override { return true; }

  void AddFlags(FlagSet& flags) override {
    flags.Add("kind", &kind_, "KIND",
              "device or named, as `normctl regions` prints it; required. (Memory passed as a "
              "descriptor ends with its client's connection.) The name is removed at once; the "
              "command then waits until no request uses the memory, at most --timeout.");
    flags.Add("all", &all_, "",
              "Instead of names: all regions of this kind that this identity has registered, also "
              "those of clients that still run.");
  }
  absl::Status Check(absl::Span<const std::string> arguments) const override {
    if (kind_ != "device" && kind_ != "named") {
      return absl::InvalidArgumentError(
          absl::StrCat("--kind: \"", kind_, "\", wanted device or named"));
    }
    if (all_ != arguments.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("NAME: ", arguments.size(), " names ",
                                                     all_ ? "with" : "without",
                                                     " --all, wanted one of the two"));
    }
    // In the protocol an empty name means all of them.
    if (std::find(arguments.begin(), arguments.end(), "") != arguments.end()) {
      return absl::InvalidArgumentError("NAME: empty, wanted a region's name, or --all");
    }
    return absl::OkStatus();
  }

  // Stops at the first error; the regions unregistered before it have been printed.
  absl::Status Run(const Context& context) override {
    const std::vector<std::string> everything = {""};
    for (const std::string& region : all_ ? everything : context.arguments) {
      const absl::Status status =
          kind_ == "device" ? context.client->UnregisterDeviceMemory(region, context.timeout)
                            : context.client->UnregisterNamedMemory(region, context.timeout);
      if (!status.ok() && context.arguments.size() > 1) {
        return absl::Status(status.code(), absl::StrCat(region, ": ", status.message()));
      }
      if (!status.ok()) return status;
      Print(context, region);
    }
    return absl::OkStatus();
  }

 private:
  void Print(const Context& context, const std::string& region) const {
    if (context.json) {
      nlohmann::json json = {{"kind", kind_}, {"all", all_}};
      if (!all_) json["name"] = region;
      *context.out << json << "\n";
    } else if (all_) {
      *context.out << "unregistered all of kind " << kind_ << "\n";
    } else {
      *context.out << "unregistered " << region << "\n";
    }
  }

  std::string kind_;
  bool all_ = false;
};

// The shared part of `model`, `load` and `unload`: a model's name and version.
class ModelCommandBase : public Command {
 public:
  const char* arguments() const override { return "NAME"; }
  int argument_count() const override { return 1; }
  void AddFlags(FlagSet& flags) override { flags.Add("version", &version_, "N", version_help()); }

 protected:
  virtual const char* version_help() const { return "Version; 0 is the highest that is known."; }
  std::int64_t version() const { return version_; }

  static absl::Status Print(const Context& context, const absl::StatusOr<v1::ModelInfo>& model) {
    if (!model.ok()) return model.status();
    if (context.json) {
      PrintJson(*model, *context.out);
    } else {
      PrintModel(*model, *context.out);
    }
    return absl::OkStatus();
  }

 private:
  std::int64_t version_ = 0;
};

class ModelCommand final : public ModelCommandBase {
 public:
  const char* name() const override { return "model"; }
  const char* summary() const override { return "tells a model's operation and parameters"; }
  absl::Status Run(const Context& context) override {
    return Print(context,
                 context.client->GetModel(context.arguments[0], version(), context.timeout));
  }
};

class LoadCommand final : public ModelCommandBase {
 public:
  const char* name() const override { return "load"; }
  const char* summary() const override { return "loads a model, or loads it anew"; }
  absl::Status Run(const Context& context) override {
    return Print(context,
                 context.client->LoadModel(context.arguments[0], version(), context.timeout));
  }

 private:
  const char* version_help() const override {
    return "Version; 0 is all that the model's version_policy wants.";
  }
};

class UnloadCommand final : public ModelCommandBase {
 public:
  const char* name() const override { return "unload"; }
  const char* summary() const override { return "unloads a model; requests in flight finish"; }
  absl::Status Run(const Context& context) override {
    const auto unloaded =
        context.client->UnloadModel(context.arguments[0], version(), context.timeout);
    if (!unloaded.ok()) return unloaded.status();
    if (context.json) {
      PrintJson(*unloaded, *context.out);
      return absl::OkStatus();
    }
    for (const std::int64_t v : unloaded->versions()) {
      *context.out << "unloaded " << context.arguments[0] << " version " << v << "\n";
    }
    return absl::OkStatus();
  }

 private:
  const char* version_help() const override { return "Version; 0 is every version."; }
};

}  // namespace

std::vector<std::unique_ptr<Command>> MakeAdminCommands() {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(std::make_unique<HealthCommand>());
  commands.push_back(std::make_unique<InfoCommand>());
  commands.push_back(std::make_unique<ModelsCommand>());
  commands.push_back(std::make_unique<ModelCommand>());
  commands.push_back(std::make_unique<LoadCommand>());
  commands.push_back(std::make_unique<UnloadCommand>());
  commands.push_back(std::make_unique<RegionsCommand>());
  commands.push_back(std::make_unique<UnregisterCommand>());
  return commands;
}

}  // namespace normd::client
