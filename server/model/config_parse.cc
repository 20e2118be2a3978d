// What an error says of a config's text beyond its schema.

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest_name.h"
#include "server/model/config.h"
#include "server/text_format/parse_text.h"

namespace normd {
namespace {

using MessageDescriptor = google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

using Pair = std::pair<absl::string_view, absl::string_view>;

// What people who come from PyTorch or another framework write for a field of ours.
constexpr Pair kOtherNames[] = {{"num_groups", "groups"},
                                {"num_channels", "channels"},
                                {"num_features", "channels"},
                                {"elementwise_affine", "affine"},
                                {"epsilon", "eps"},
                                {"variance_epsilon", "eps"},
                                {"rms_norm_eps", "eps"},
                                {"layer_norm_eps", "eps"},
                                {"hidden_size", "normalized_shape"},
                                {"track_running_stats", "use_running_stats"},
                                {"negative_slope", "leaky_slope"},
                                {"data_format", "layout"},
                                {"memory_format", "layout"},
                                {"dtype", "dtypes"},
                                {"prefix", "parameter_prefix"},
                                {"l2_normalize", "lp_normalize"}};
// PyTorch's arguments that have no counterpart.
constexpr Pair kNoNames[] = {
    {"momentum", "inference does not use it: leave it out"},
    {"device", "the server's --device says where models are computed: leave it out"},
    {"bias", "a norm has the weight and the bias that its file has: leave it out"},
    {"dim", "axes says which dimensions, normalized_shape how large they are"},
    {"track_running_stats", "running statistics are always used here: leave it out"}};

// Fields of Triton's config.pbtxt that have no counterpart.
constexpr absl::string_view kTritonNames[] = {"name",
                                              "platform",
                                              "backend",
                                              "max_batch_size",
                                              "input",
                                              "output",
                                              "instance_group",
                                              "dynamic_batching",
                                              "optimization",
                                              "parameters",
                                              "model_warmup",
                                              "sequence_batching",
                                              "default_model_filename",
                                              "ensemble_scheduling",
                                              "model_transaction_policy"};

// Other names of values, folded. A value whose name is merely like another's is another function.
constexpr Pair kOtherValues[] = {
    {"gelu", "GELU_ERF, torch.nn.GELU, or GELU_TANH, its approximate=\"tanh\""},
    {"geluexact", "GELU_ERF"},
    {"gelunew", "GELU_TANH"},
    {"gelupytorchtanh", "GELU_TANH"},
    {"swish", "SILU"},
    {"identity", "NONE"},
    {"linear", "NONE"},
    {"nchw", "CHANNELS_FIRST"},
    {"channelfirst", "CHANNELS_FIRST"},
    {"nhwc", "CHANNELS_LAST"},
    {"channellast", "CHANNELS_LAST"},
    {"float", "FLOAT32"},
    {"f32", "FLOAT32"},
    {"fp32", "FLOAT32"},
    {"double", "FLOAT64"},
    {"f64", "FLOAT64"},
    {"fp64", "FLOAT64"},
    {"half", "FLOAT16"},
    {"f16", "FLOAT16"},
    {"fp16", "FLOAT16"},
    {"bf16", "BFLOAT16"},
    {"float8e4m3fn", "FLOAT8_E4M3"},
    {"tf32", "PRECISION_TF32"},
    {"float32", "PRECISION_FLOAT32"},
    {"bfloat16", "PRECISION_BFLOAT16"},
};

// Where a config has a field of this name, which `message` has not; empty: nowhere.
std::string WhereItBelongs(const MessageDescriptor& message, const std::string& name) {
  const MessageDescriptor& config = *v1::ModelConfig::descriptor();
  if (config.FindFieldByName(name) != nullptr) {
    return "it belongs beside the operation, not inside: is a } missing before it?";
  }
  std::vector<std::string> owners;
  for (int i = 0; i < config.field_count(); ++i) {
    const MessageDescriptor* const inner = config.field(i)->message_type();
    if (inner != nullptr && inner->FindFieldByName(name) != nullptr) {
      owners.push_back(config.field(i)->name());
    }
  }
  if (owners.empty()) return "";
  if (owners.size() > 1 && &message == &config) return "it belongs inside the operation";
  return absl::StrCat("it belongs inside ", absl::StrJoin(owners, " or "));
}

std::vector<std::string> FieldsOf(const MessageDescriptor& message) {
  std::vector<std::string> names;
  for (int i = 0; i < message.field_count(); ++i) names.push_back(message.field(i)->name());
  return names;
}

std::string FieldAdvice(const MessageDescriptor& message, absl::string_view name) {
  for (const auto& [other, field] : kOtherNames) {
    if (name == other && message.FindFieldByName(std::string(field)) != nullptr) {
      return absl::StrCat("did you mean \"", field, "\"?");
    }
  }
  for (const auto& [other, advice] : kNoNames) {
    if (name == other) return std::string(advice);
  }
  const bool is_of_triton =
      std::find(std::begin(kTritonNames), std::end(kTritonNames), name) != std::end(kTritonNames);
  if (&message == v1::ModelConfig::descriptor() && is_of_triton) {
    return "that is of Triton's config.pbtxt: here the folder has the model's name, and an "
           "operation says the rest";
  }
  if (!NearestName(name, FieldsOf(message)).empty()) return "";  // That is said without us.
  return WhereItBelongs(message, std::string(name));
}

std::string PossibleValues(const FieldDescriptor& field) {
  if (field.full_name() == "normd.v1.ModelConfig.dtypes") {
    return "FLOAT32, FLOAT64 (not of linear_norm), FLOAT16 or BFLOAT16";
  }
  if (field.full_name() == "normd.v1.Quantization.dtype") return "INT8 or FLOAT8_E4M3";
  return "";
}

std::string ValueAdvice(const FieldDescriptor& field, absl::string_view value) {
  std::string possible = PossibleValues(field);
  if (possible.empty()) possible = ListValues(*field.enum_type());
  const std::string folded = FoldedName(value);
  std::string meant;
  const EnumDescriptor& values = *field.enum_type();
  for (int i = 0; i < values.value_count(); ++i) {
    if (FoldedName(values.value(i)->name()) == folded) meant = values.value(i)->name();
  }
  for (const auto& [other, known] : kOtherValues) {
    const absl::string_view first = known.substr(0, known.find(','));
    if (folded == other && values.FindValueByName(std::string(first)) != nullptr) {
      meant = std::string(known);
    }
  }
  const bool is_possible = absl::StrContains(possible, meant.substr(0, meant.find(',')));
  return meant.empty() || !is_possible ? "" : absl::StrCat("did you mean ", meant, "?");
}

}  // namespace

absl::StatusOr<v1::ModelConfig> ParseModelConfig(
    absl::string_view text, google::protobuf::TextFormat::ParseInfoTree* places) {
  const TextSchema schema = {v1::ModelConfig::descriptor(), PossibleValues, FieldAdvice,
                             ValueAdvice};
  v1::ModelConfig config;
  if (absl::Status status = ParseText(schema, text, config, places); !status.ok()) return status;
  // Protobuf 3.21 serializes an entry whose key or value the text leaves out with a wrong length,
  // until somebody has looked the map up.
  static_cast<void>(config.parameter_names());
  return config;
}

}  // namespace normd
