// What the Open Inference Protocol tells of models, from what the registry knows of them.

#ifndef NORMD_SERVER_RPC_INFER_MODELS_H_
#define NORMD_SERVER_RPC_INFER_MODELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "inference/grpc_service.pb.h"
#include "server/model/registry.h"

namespace normd {

// A model that is loaded, with all of its loaded versions. An entry of -1 in a shape is any size,
// or, where the model takes any number of dimensions there, all of them. Tensors may have other
// types than the one that is told, which is the first that the model takes.
inference::ModelMetadataResponse MetadataOf(const ModelRegistry& registry, const Model& model);

inference::ModelConfig ConfigOf(const Model& model);

// Of each loaded version of every model.
void AddStatistics(const ModelRegistry& registry, inference::ModelStatisticsResponse& out);
// Of one model; version 0: of each version that is loaded. NotFound when there is none.
absl::Status AddStatisticsOf(const ModelRegistry& registry, absl::string_view name,
                             std::int64_t version, inference::ModelStatisticsResponse& out);

// Every version that is loaded or has failed to load.
void AddIndex(const ModelRegistry& registry, bool only_ready,
              inference::RepositoryIndexResponse& out);

}  // namespace normd

#endif  // NORMD_SERVER_RPC_INFER_MODELS_H_
