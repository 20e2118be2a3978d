#include "server/shared_memory_parts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "server/net/process_limits.h"
#include "spdlog/spdlog.h"

namespace normd {
namespace {

// Null without shared memory of the host, and where no device could use it.
std::unique_ptr<PageLocks> PageLocksOf(const ServerConfig& config, const PageLockLimits& limits,
                                       Backend& backend, Metrics& metrics, const Clock& clock) {
  PageLocker* const locker = backend.page_locker();
  if (config.shared_memory == "off" || config.max_locked_shared_bytes == 0 || locker == nullptr) {
    return nullptr;
  }
  return std::make_unique<PageLocks>(*locker, limits, metrics.ForRegions(), clock);
}

// The file of a named region stays open while its pages are locked.
PageLockLimits PageLockLimitsOf(const ServerConfig& config) {
  PageLockLimits limits = {config.max_locked_shared_bytes, config.max_identity_locked_shared_bytes};
  if (config.shared_memory == "named") {
    const std::int64_t share = (RaiseDescriptorLimit() - OpenDescriptors()) / 8;
    limits.max_regions = std::clamp<std::int64_t>(share, 1, config.max_shared_regions);
  }
  return limits;
}

// The owner of the regions that a client passes: an identity that may infer with some model.
absl::StatusOr<std::string> OwnerOfRegions(const Authorizer& authorizer,
                                           absl::string_view authorization) {
  PeerCredentials credentials;
  credentials.own_user = true;  // Nobody else is let in.
  if (!authorization.empty()) credentials.authorization = authorization;
  const Recognised caller = authorizer.Recognise(credentials);
  const AskedCall asked{caller, false, "hand over a region", "unix:", ""};
  if (absl::Status status = authorizer.Check(asked, Right::kInfer); !status.ok()) return status;
  return *caller == nullptr ? std::string() : (*caller)->identity.name;
}

}  // namespace

SharedMemory SharedMemoryOf(const ServerConfig& config, Backend& backend, Metrics& metrics,
                            const Clock& clock) {
  if (config.shared_memory == "off" && !config.shared_memory_cuda) return {};
  SharedMemory shared;
  const PageLockLimits lock_limits = PageLockLimitsOf(config);
  shared.page_locks = PageLocksOf(config, lock_limits, backend, metrics, clock);
  if (shared.page_locks != nullptr && config.shared_memory == "named") {
    shared.descriptors = lock_limits.max_regions;
  }
  RegionRegistryOptions options;
  options.named = config.shared_memory == "named";
  options.prefix = config.shared_memory_prefix;
  options.device = config.shared_memory_cuda;
  options.device_memory = backend.shared_device_memory();
  options.page_locks = shared.page_locks.get();
  if (options.device && options.device_memory == nullptr) {
    spdlog::warn("--shared_memory_cuda: the server computes on no device and takes no such memory");
  }
  options.limits = {config.max_shared_regions, config.max_shared_bytes,
                    config.max_identity_shared_regions, config.max_identity_shared_bytes};
  shared.regions =
      std::make_unique<RegionRegistry>(std::move(options), metrics.ForRegions(), clock);
  return shared;
}

absl::StatusOr<std::unique_ptr<RegionListener>> HandoverOf(const ServerConfig& config,
                                                           SharedMemory& shared,
                                                           const Authorizer& authorizer,
                                                           Metrics& metrics) {
  if (config.shared_memory_listen.empty()) return std::unique_ptr<RegionListener>();
  const std::int64_t limit = RaiseDescriptorLimit();
  const absl::StatusOr<HandoverLimits> limits = DecideHandoverLimits(
      config.max_shared_regions, limit, OpenDescriptors() + shared.descriptors);
  if (!limits.ok()) return limits.status();
  if (static_cast<std::int64_t>(limits->with_regions) < config.max_shared_regions) {
    spdlog::warn(
        "--shared_memory_listen: {} descriptors are enough for {} connections that hold regions, "
        "{} of one identity, and {} that hold none",
        limit, limits->with_regions, limits->owner_with_regions, limits->without_regions);
  }
  shared.descriptors += DescriptorsOf(*limits);
  return RegionListener::Start({config.shared_memory_listen, *limits}, *shared.regions,
                               metrics.ForRegions(),
                               [&authorizer](absl::string_view authorization) {
                                 return OwnerOfRegions(authorizer, authorization);
                               });
}

}  // namespace normd
