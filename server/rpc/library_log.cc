#include "server/rpc/library_log.h"

#include <cstring>
#include <string>

#include "base/printable.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

constexpr std::size_t kMostBytes = 1000;

void Log(spdlog::level::level_enum level, const char* library, const char* file, int line,
         absl::string_view message) {
  const char* const slash = std::strrchr(file, '/');
  spdlog::log(level, "{}: {} ({}:{})", library, Printable(message, kMostBytes),
              slash == nullptr ? file : slash + 1, line);
}

spdlog::level::level_enum LevelOf(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG: return spdlog::level::debug;
    case GPR_LOG_SEVERITY_INFO: return spdlog::level::info;
    default: return spdlog::level::err;
  }
}

void PassOn(gpr_log_func_args* args) {
  Log(LevelOf(args->severity), "grpc", args->file, args->line, args->message);
}

// Protobuf calls a message that a client has made wrong an error; the call's refusal tells of it.
void PassOnProtobuf(google::protobuf::LogLevel level, const char* file, int line,
                    const std::string& message) {
  Log(level == google::protobuf::LOGLEVEL_FATAL ? spdlog::level::critical : spdlog::level::debug,
      "protobuf", file, line, message);
}

}  // namespace

void PassOnLibraryLogs() {
  gpr_set_log_function(PassOn);
  google::protobuf::SetLogHandler(PassOnProtobuf);
}

}  // namespace normd
