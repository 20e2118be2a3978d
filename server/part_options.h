// The options of the server's parts, from the flags.

#ifndef NORMD_SERVER_PART_OPTIONS_H_
#define NORMD_SERVER_PART_OPTIONS_H_

#include <cstdint>

#include "server/accept/environment.h"
#include "server/batching/admission.h"
#include "server/batching/batch_queue.h"
#include "server/config/config.h"
#include "server/exec/backends.h"
#include "server/model/registry.h"
#include "server/rest/rest_options.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/readiness.h"
#include "server/rpc/server.h"
#include "server/tls/certificate_store.h"

namespace normd {

BackendOptions BackendOf(const ServerConfig& config);
BatchQueueOptions QueueOf(const ServerConfig& config, bool on_cpu);
AcceptLimits LimitsOf(const ServerConfig& config, bool on_cpu);
CallOptions CallsOf(const ServerConfig& config);
WithoutModels WithoutModelsOf(const ServerConfig& config);
// `readiness` outlives the registry.
RegistryOptions RegistryOf(const ServerConfig& config, Readiness& readiness);
AdmissionLimits AdmissionOf(const ServerConfig& config);
// `tls` outlives the server; null without TLS.
ServerOptions ServingOf(const ServerConfig& config, const CertificateStore* tls,
                        std::int64_t reserved_descriptors);

// Likewise.
RestOptions RestOf(const ServerConfig& config, const CertificateStore* tls);

}  // namespace normd

#endif  // NORMD_SERVER_PART_OPTIONS_H_
