// The interface of a subcommand.

#ifndef NORMD_CLIENT_NORMCTL_COMMAND_H_
#define NORMD_CLIENT_NORMCTL_COMMAND_H_

#include <ostream>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "client/client.h"
#include "flags/flag_set.h"

namespace normd::client {

// The inputs and outputs of every command.
struct Context {
  Client* client = nullptr;  // Not yet connected; a command need not use it.
  Duration timeout{};
  bool timeout_given = false;  // Set on the command line.
  bool json = false;
  std::string token;                   // From --token_file; empty: none.
  std::vector<std::string> arguments;  // Without the flags.
  std::ostream* out = nullptr;
  std::ostream* terminal = nullptr;  // For progress that is redrawn; null if there is no terminal.
};

// Created anew for each command line.
class Command {
 public:
  virtual ~Command() = default;

  virtual const char* name() const = 0;
  virtual const char* arguments() const { return ""; }  // "NAME"
  virtual const char* summary() const = 0;
  virtual int argument_count() const { return 0; }
  virtual bool takes_further_arguments() const { return false; }  // More than `arguments` names.
  // Streams live until they are stopped; they have a time limit only on request.
  virtual bool HasDefaultTimeout() const { return true; }

  virtual void AddFlags(FlagSet& flags) { (void)flags; }
  // Conditions between flags, and on the arguments without them. InvalidArgument: the command line
  // is wrong.
  virtual absl::Status Check(absl::Span<const std::string> arguments) const {
    (void)arguments;
    return absl::OkStatus();
  }
  // Prints to context.out. The caller prints an error.
  virtual absl::Status Run(const Context& context) = 0;
};

std::vector<std::unique_ptr<Command>> MakeAdminCommands();
std::unique_ptr<Command> MakeNormalizeCommand();
std::unique_ptr<Command> MakeRandomCommand();
std::unique_ptr<Command> MakeTokenCommand();

}  // namespace normd::client

#endif  // NORMD_CLIENT_NORMCTL_COMMAND_H_
