#include "client/normctl/completion.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace normd::client {

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

}  // namespace normd::client
