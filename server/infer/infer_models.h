// The Open Inference Protocol's descriptions of models, from the registry's state.

#ifndef NORMD_SERVER_INFER_INFER_MODELS_H_
#define NORMD_SERVER_INFER_INFER_MODELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "inference/grpc_service.pb.h"
#include "server/model/registry.h"

namespace normd {

// A loaded model, with all of its loaded versions. -1 in a shape is any size or, if the model takes
// any number of dimensions there, all of them. Tensors may have types other than the listed one,
// which is the first that the model takes.
inference::ModelMetadataResponse MetadataOf(const ModelRegistry& registry, const Model& model);

inference::ModelConfig ConfigOf(const Model& model);

// Adds the statistics of each loaded version of every model.
void AddStatistics(const ModelRegistry& registry, inference::ModelStatisticsResponse& out);
// Adds the statistics of one model; version 0: of each loaded version. NotFound when there is none.
absl::Status AddStatisticsOf(const ModelRegistry& registry, absl::string_view name,
                             std::int64_t version, inference::ModelStatisticsResponse& out);

// Every version that is loaded or has failed to load.
void AddIndex(const ModelRegistry& registry, bool only_ready,
              inference::RepositoryIndexResponse& out);

}  // namespace normd

#endif  // NORMD_SERVER_INFER_INFER_MODELS_H_
