#include "client/normctl/commands.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/nearest_name.h"
#include "client/channel_security.h"
#include "client/connection_flags.h"
#include "client/normctl/command.h"
#include "flags/version.h"

namespace normd::client {
namespace {

// What a shell is told of the commands, to complete a command line.
struct CommandWords {
  std::string name;
  std::vector<std::string> flags;  // "--name=", or "--name" where it takes no value.
};

// A script that bash sources: it completes commands, their flags, and otherwise files.
std::string BashCompletion(absl::Span<const CommandWords> commands) {
  std::string names = "help completion --help --version";
  std::string cases;
  for (const CommandWords& command : commands) {
    absl::StrAppend(&names, " ", command.name);
    absl::StrAppend(&cases, "      ", command.name, ") words=\"", absl::StrJoin(command.flags, " "),
                    "\" ;;\n");
  }
  return absl::StrCat(R"(# source <(normctl completion bash)
_normctl() {
  local words=
  if ((COMP_CWORD == 1)); then
    words=")",
                      names, R"("
  elif [[ ${COMP_WORDS[1]} == completion ]]; then
    words=bash
  elif [[ $2 == -* ]]; then
    case ${COMP_WORDS[1]} in
)",
                      cases, R"(    esac
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$2")
  if [[ ${COMPREPLY[*]} == --*= ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -F _normctl normctl
)");
}

std::vector<std::unique_ptr<Command>> MakeCommands() {
  std::vector<std::unique_ptr<Command>> commands = MakeAdminCommands();
  commands.push_back(MakeNormalizeCommand());
  commands.push_back(MakeRandomCommand());
  commands.push_back(MakeTokenCommand());
  return commands;
}

// The flags that every command has.
struct CommonFlags {
  std::string server = "127.0.0.1:8001";
  absl::Duration timeout = absl::Seconds(30);
  ConnectionFlags connection;
  bool json = false;
  bool help = false;

  void AddTo(FlagSet& flags) {
    flags.Add("server", &server, "HOST:PORT", "Server to talk to.");
    connection.AddTo(flags);
    flags.Add("timeout", &timeout, "DURATION", "Time for each call, such as 500ms or 10s.");
    flags.Add("json", &json, "", "Prints JSON.");
    flags.Add("help", &help, "", "Prints this help.");
  }
};

void PrintHelp(std::ostream& out) {
  out << "Usage: normctl COMMAND [arguments] [flags]\n\nnormctl talks to a normd server.\n\n"
         "  normctl models\n"
         "  normctl normalize x.npy --model=instance_norm_64 -o y.npy\n"
         "  normctl health --server=normd.example:8001 --tls_ca=ca.pem\n\nCommands:\n";
  for (const auto& command : MakeCommands()) {
    out << absl::StreamFormat("  %-10s %-8s %s\n", command->name(), command->arguments(),
                              command->summary());
  }
  CommonFlags common;
  FlagSet flags;
  common.AddTo(flags);
  out << "\n`normctl --version` prints the version, `normctl completion bash` a script that\n"
         "completes command lines.\n\nFlags of every command (`normctl COMMAND --help` shows its "
         "own):\n"
      << flags.Help()
      << "\nExit codes: 0 done; 1 the call failed, the response is wrong, or health is not "
         "SERVING;\n"
         "2 the command line is wrong.\n";
}

std::vector<CommandWords> WordsOfCommands() {
  std::vector<CommandWords> words;
  for (const auto& command : MakeCommands()) {
    CommonFlags common;
    FlagSet flags;
    command->AddFlags(flags);
    common.AddTo(flags);
    CommandWords& added = words.emplace_back();
    added.name = command->name();
    for (const FlagSet::Flag& flag : flags.flags()) {
      added.flags.push_back(absl::StrCat("--", flag.name, flag.is_bool ? "" : "="));
    }
  }
  return words;
}

// "; did you mean ...?", or nothing.
std::string CommandSuggestion(absl::string_view name) {
  std::vector<std::string> names = {"completion", "help"};
  for (const auto& command : MakeCommands()) names.emplace_back(command->name());
  const std::string nearest = NearestName(name, names);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

int UsageError(std::ostream& err, const std::string& message) {
  err << "normctl: " << message << "\nTry: normctl --help\n";
  return kExitUsage;
}

absl::Status Execute(Command& command, const CommonFlags& common, bool timeout_given,
                     Client& client, std::vector<std::string> arguments, std::ostream& out,
                     std::ostream* terminal) {
  Context context;
  context.client = &client;
  const bool limited =
      common.timeout != absl::InfiniteDuration() && (timeout_given || command.HasDefaultTimeout());
  context.timeout = limited ? absl::ToChronoNanoseconds(common.timeout) : kNoTimeout;
  context.timeout_given = timeout_given;
  context.json = common.json;
  if (!common.connection.token_file.empty()) {
    absl::StatusOr<std::string> token = ReadToken(common.connection.token_file);
    if (!token.ok()) return token.status();
    context.token = *std::move(token);
  }
  context.arguments = std::move(arguments);
  context.out = &out;
  context.terminal = terminal;
  return command.Run(context);
}

int Run(absl::Span<const std::string> arguments, std::ostream& out, std::ostream& err,
        bool terminal) {
  if (arguments.empty()) {
    PrintHelp(err);
    return kExitUsage;
  }
  if (arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    PrintHelp(out);
    return kExitOk;
  }
  if (arguments[0] == "--version") {
    out << VersionText("normctl") << "\n";
    return kExitOk;
  }
  if (arguments[0] == "completion") {
    if (arguments.size() != 2 || arguments[1] != "bash") {
      return UsageError(err, "completion: wanted bash, the one shell that there is a script for");
    }
    out << BashCompletion(WordsOfCommands());
    return kExitOk;
  }
  std::vector<std::unique_ptr<Command>> commands = MakeCommands();
  const auto it = std::find_if(commands.begin(), commands.end(),
                               [&](const auto& c) { return c->name() == arguments[0]; });
  if (it == commands.end()) {
    return UsageError(
        err, absl::StrCat("unknown command ", arguments[0], CommandSuggestion(arguments[0])));
  }
  Command& command = **it;

  CommonFlags common;
  const absl::Duration default_timeout = common.timeout;
  FlagSet flags;
  command.AddFlags(flags);
  common.AddTo(flags);
  absl::StatusOr<std::vector<std::string>> others = flags.Parse(arguments.subspan(1));
  if (!others.ok()) return UsageError(err, std::string(others.status().message()));
  if (common.help) {
    out << "Usage: normctl " << command.name() << " " << command.arguments()
        << " [flags]: " << command.summary() << "\n\n"
        << flags.Help();
    return kExitOk;
  }
  const int count = static_cast<int>(others->size());
  if (count < command.argument_count() ||
      (count > command.argument_count() && !command.takes_further_arguments())) {
    return UsageError(err, absl::StrCat(command.name(), ": ", count, " arguments, wanted ",
                                        command.argument_count(), " ", command.arguments()));
  }
  if (common.timeout <= absl::ZeroDuration()) {
    return UsageError(err, "--timeout: wanted a time above zero, such as 500ms or 10s");
  }
  absl::Status checked = flags.Check();
  checked.Update(command.Check(*others));
  if (!checked.ok()) return UsageError(err, std::string(checked.message()));
  ClientOptions options;
  common.connection.Set(options);
  const absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(common.server, options);
  if (!client.ok()) return UsageError(err, absl::StrCat("--", client.status().message()));
  // If it cannot be reached, the command's call says why.
  (*client)->Connect(absl::ToChronoNanoseconds(common.timeout));
  const bool timeout_given = common.timeout != default_timeout;
  const absl::Status status = WithHint(Execute(command, common, timeout_given, **client,
                                               *std::move(others), out, terminal ? &err : nullptr));
  if (status.ok()) return kExitOk;
  err << "normctl: " << absl::StatusCodeToString(status.code()) << ": " << status.message() << "\n";
  return kExitFailed;
}

}  // namespace

int RunNormctl(absl::Span<const std::string> arguments, std::ostream& out, std::ostream& err,
               bool terminal) {
  const int code = Run(arguments, out, err, terminal);
  if (code != kExitOk || out.flush()) return code;
  err << "normctl: stdout: cannot be written\n";
  return kExitFailed;
}

}  // namespace normd::client
