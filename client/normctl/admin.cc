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

// One call of the client, and its response as text.
template <typename Response>
struct CallForm {
  const char* name;
  const char* summary;
  absl::StatusOr<Response> (*call)(const Context& context, std::int64_t version);
  void (*print)(const Response& response, const Context& context);
  const char* version_help = nullptr;  // Null: the call is not of a model.
};

template <typename Response>
class CallCommand final : public Command {
 public:
  explicit CallCommand(const CallForm<Response>& form) : form_(form) {}

  const char* name() const override { return form_.name; }
  const char* arguments() const override { return argument_count() == 0 ? "" : "NAME"; }
  const char* summary() const override { return form_.summary; }
  int argument_count() const override { return form_.version_help == nullptr ? 0 : 1; }

  void AddFlags(FlagSet& flags) override {
    if (argument_count() > 0) flags.Add("version", &version_, "N", form_.version_help);
  }
  absl::Status Run(const Context& context) override {
    const absl::StatusOr<Response> response = form_.call(context, version_);
    if (!response.ok()) return response.status();
    if (context.json) {
      PrintJson(*response, *context.out);
    } else {
      form_.print(*response, context);
    }
    return absl::OkStatus();
  }

 private:
  const CallForm<Response> form_;
  std::int64_t version_ = 0;
};

constexpr CallForm<v1::GetServerInfoResponse> kInfo = {
    "info", "tells the server's build, lanes and limits",
    [](const Context& c, std::int64_t) { return c.client->GetServerInfo(c.timeout); },
    [](const auto& info, const Context& c) { PrintServerInfo(info, *c.out); }};

constexpr CallForm<v1::ListModelsResponse> kModels = {
    "models", "lists every version, loaded or failed to load",
    [](const Context& c, std::int64_t) { return c.client->ListModels(c.timeout); },
    [](const auto& models, const Context& c) { PrintModels(models, *c.out); }};

constexpr CallForm<v1::ListSharedMemoryResponse> kRegions = {
    "regions", "lists the memory that clients share",
    [](const Context& c, std::int64_t) { return c.client->ListSharedMemory(c.timeout); },
    [](const auto& regions, const Context& c) { PrintRegions(regions, *c.out); }};

constexpr CallForm<v1::ModelInfo> kModel = {
    "model", "tells a model's operation and parameters",
    [](const Context& c, std::int64_t version) {
      return c.client->GetModel(c.arguments[0], version, c.timeout);
    },
    [](const auto& model, const Context& c) { PrintModel(model, *c.out); },
    "Version; 0 is the highest that is known."};

constexpr CallForm<v1::ModelInfo> kLoad = {
    "load", "loads a model, or loads it anew",
    [](const Context& c, std::int64_t version) {
      return c.client->LoadModel(c.arguments[0], version, c.timeout);
    },
    kModel.print, "Version; 0 is all that the model's version_policy wants."};

constexpr CallForm<v1::UnloadModelResponse> kUnload = {
    "unload", "unloads a model; requests in flight finish",
    [](const Context& c, std::int64_t version) {
      return c.client->UnloadModel(c.arguments[0], version, c.timeout);
    },
    [](const auto& unloaded, const Context& c) {
      for (const std::int64_t version : unloaded.versions()) {
        *c.out << "unloaded " << c.arguments[0] << " version " << version << "\n";
      }
    },
    "Version; 0 is every version."};

template <typename Response>
std::unique_ptr<Command> Make(const CallForm<Response>& form) {
  return std::make_unique<CallCommand<Response>>(form);
}

}  // namespace

std::vector<std::unique_ptr<Command>> MakeAdminCommands() {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(std::make_unique<HealthCommand>());
  commands.push_back(Make(kInfo));
  commands.push_back(Make(kModels));
  commands.push_back(Make(kModel));
  commands.push_back(Make(kLoad));
  commands.push_back(Make(kUnload));
  commands.push_back(Make(kRegions));
  commands.push_back(std::make_unique<UnregisterCommand>());
  return commands;
}

}  // namespace normd::client
