#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "server/config/flags.h"

namespace normd {

absl::Status Validate(const ServerConfig& config) {
  ServerConfig checked = config;
  absl::Status status = ServerFlags(checked).Check();
  return status.ok() ? CheckTogether(config) : status;
}

absl::StatusOr<CommandLine> ParseCommandLine(absl::Span<const char* const> args) {
  CommandLine line;
  const FlagSet flags = ServerFlags(line.config);
  flags.SetDefaults();
  for (std::size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    if (arg.size() < 2 || !absl::ConsumePrefix(&arg, "-")) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", args[i], "\": wanted only flags, such as --listen=127.0.0.1:8001"));
    }
    absl::ConsumePrefix(&arg, "-");
    if (arg == "help" || arg == "h") {
      line.help = true;
      return line;
    }
    if (arg == "version") {
      line.version = true;
      return line;
    }
    const std::size_t equals = arg.find('=');
    const absl::string_view name = arg.substr(0, equals);
    const FlagSet::Flag* flag = flags.Find(name);
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, ": no such flag (--help lists them)", flags.Suggestion(name)));
    }
    absl::string_view value;
    if (equals != absl::string_view::npos) {
      value = arg.substr(equals + 1);
    } else if (flag->is_bool) {
      value = "true";
    } else if (++i < args.size()) {
      value = args[i];
    } else {
      return FlagSet::Invalid(name, absl::StrCat("no value, wanted ", FlagSet::Wanted(*flag)));
    }
    if (absl::Status status = FlagSet::Read(*flag, value); !status.ok()) return status;
  }
  absl::Status status = Validate(line.config);
  if (!status.ok()) return status;
  return line;
}

std::string FlagHelp() {
  constexpr absl::string_view kUsage =
      "Usage: normd [flags] | --version | --help\n\n"
      "  normd                                                  # Serves ./models to this machine\n"
      "  normd --model_repository=/srv/models --device=cpu --listen=127.0.0.1:9001\n"
      "  normd --listen=0.0.0.0:8001 --tls_cert=cert.pem --tls_key=key.pem\n\n";
  ServerConfig config;
  return absl::StrCat(kUsage, ServerFlags(config).Help());
}

}  // namespace normd
