#include "server/rpc/grpc_log.h"

#include <cstring>

#include "grpc/support/log.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

spdlog::level::level_enum LevelOf(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG: return spdlog::level::debug;
    case GPR_LOG_SEVERITY_INFO: return spdlog::level::info;
    default: return spdlog::level::err;
  }
}

void PassOn(gpr_log_func_args* args) {
  const char* const slash = std::strrchr(args->file, '/');
  spdlog::log(LevelOf(args->severity), "grpc: {} ({}:{})", args->message,
              slash == nullptr ? args->file : slash + 1, args->line);
}

}  // namespace

void PassOnGrpcLog() { gpr_set_log_function(PassOn); }

}  // namespace normd
