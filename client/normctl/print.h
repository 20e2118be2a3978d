// The service's messages as text for people, and as JSON.

#ifndef NORMD_CLIENT_NORMCTL_PRINT_H_
#define NORMD_CLIENT_NORMCTL_PRINT_H_

#include <ostream>
#include <string>

#include "normd/v1/norm_service.pb.h"

namespace normd::client {

// Protobuf's JSON mapping with the .proto's field names and absent fields; int64 are strings.
void PrintJson(const google::protobuf::Message& message, std::ostream& out);

// As in config.textproto: "group_norm { channels: 64 groups: 8 } + SILU, CHANNELS_LAST"
std::string DescribeOperation(const v1::ModelConfig& config);

// One line per model version, under a heading.
void PrintModels(const v1::ListModelsResponse& models, std::ostream& out);
// Everything that the server reports about one version.
void PrintModel(const v1::ModelInfo& model, std::ostream& out);
// One line per region, under a heading.
void PrintRegions(const v1::ListSharedMemoryResponse& regions, std::ostream& out);
void PrintServerInfo(const v1::GetServerInfoResponse& info, std::ostream& out);

// "decode 0.021 ms, queue 0.004 ms, ..."
std::string DescribeStages(const v1::StageTimes& stages);

}  // namespace normd::client

#endif  // NORMD_CLIENT_NORMCTL_PRINT_H_
