#include "client/normctl/print.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/shape.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/json_util.h"
#include "wire/data_type.h"

namespace normd::client {
namespace {

double Milliseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) * 1e-6; }

std::string Megabytes(std::int64_t bytes) {
  return absl::StrFormat("%d bytes (%.1f MiB)", bytes, static_cast<double>(bytes) / (1 << 20));
}

template <typename Shape>
std::string ShapeText(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// One line per tensor: "input       x [?, 64, *]".
void PrintTensors(const char* kind,
                  const google::protobuf::RepeatedPtrField<v1::TensorInfo>& tensors,
                  std::ostream& out) {
  for (const v1::TensorInfo& tensor : tensors) {
    out << absl::StreamFormat("%-11s %s %s", kind, tensor.name(), PatternText(tensor.shape()));
    if (tensor.dtype() != v1::DATA_TYPE_UNSPECIFIED) {
      out << " " << v1::DataType_Name(tensor.dtype());
    }
    if (tensor.dtype_of_float64() != v1::DATA_TYPE_UNSPECIFIED) {
      out << ", " << v1::DataType_Name(tensor.dtype_of_float64()) << " of FLOAT64";
    }
    if (tensor.values() > 0) out << ", 0 to " << tensor.values() - 1;
    out << (tensor.on_request() ? ", on request\n" : "\n");
  }
}

// The types that a model takes, in the names of one column of kDataTypes.
std::vector<absl::string_view> TypesOf(const v1::ModelConfig& config,
                                       absl::string_view DataTypeNames::*column) {
  std::vector<absl::string_view> names;
  for (const DataTypeNames& type : kDataTypes) {
    const auto& taken = config.dtypes();
    if (!norm::IsNormalized(type.dtype)) continue;
    if (taken.empty() || std::find(taken.begin(), taken.end(), type.protocol) != taken.end()) {
      names.push_back(type.*column);
    }
  }
  return names;
}

// The names that clients, probes and gateways use.
void PrintNames(const v1::ModelInfo& model, std::ostream& out) {
  const char* const kServices[] = {"normd.v1.NormService", "inference.GRPCInferenceService"};
  out << absl::StreamFormat("served as   %s in %s\n", model.name(), kServices[0]);
  out << absl::StreamFormat(
      "            %s, version \"%d\", %s in %s\n", model.name(), model.version(),
      absl::StrJoin(TypesOf(model.config(), &DataTypeNames::inference), " "), kServices[1]);
  for (const char* const service : kServices) {
    out << absl::StreamFormat("            %s/%s in grpc.health.v1.Health\n", service,
                              model.name());
  }
  out << absl::StreamFormat("            /v2/models/%s/ready on the metrics port\n", model.name());
}

}  // namespace

void PrintJson(const google::protobuf::Message& message, std::ostream& out) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  out << (status.ok() ? text
                      : absl::StrCat("{\"error\": \"", status.message().as_string(), "\"}\n"));
}

std::string DescribeOperation(const v1::ModelConfig& config) {
  std::string text = "an operation that this client does not know";
  const google::protobuf::Reflection& reflection = *config.GetReflection();
  const google::protobuf::OneofDescriptor* const operations =
      config.GetDescriptor()->FindOneofByName("operation");
  if (reflection.HasOneof(config, operations)) {
    const auto* const operation = reflection.GetOneofFieldDescriptor(config, operations);
    google::protobuf::TextFormat::Printer printer;
    printer.SetSingleLineMode(true);
    printer.SetUseShortRepeatedPrimitives(true);
    std::string fields;
    printer.PrintToString(reflection.GetMessage(config, operation), &fields);
    text = absl::StrCat(operation->name(), " { ", fields, "}");
  }
  if (config.has_quantization()) {
    const v1::Quantization& quantization = config.quantization();
    absl::StrAppend(&text, " to ", v1::DataType_Name(quantization.dtype()), " ",
                    v1::QuantizationScales_Name(quantization.scales()));
  }
  if (config.activation() != v1::NONE) {
    absl::StrAppend(&text, " + ", v1::Activation_Name(config.activation()));
  }
  if (config.layout() != v1::CHANNELS_FIRST) {
    absl::StrAppend(&text, ", ", v1::Layout_Name(config.layout()));
  }
  return text;
}

void PrintModels(const v1::ListModelsResponse& models, std::ostream& out) {
  out << absl::StreamFormat("%-28s %8s  %-7s %s\n", "MODEL", "VERSION", "STATE", "");
  for (const v1::ModelInfo& model : models.models()) {
    std::string text;
    if (model.state() == v1::ModelInfo::READY) {
      text = DescribeOperation(model.config());
      if (!model.error().empty()) text += "; not reloaded: ";
    }
    out << absl::StreamFormat("%-28s %8d  %-7s %s%s\n", model.name(), model.version(),
                              v1::ModelInfo::State_Name(model.state()), text, model.error());
  }
}

void PrintModel(const v1::ModelInfo& model, std::ostream& out) {
  out << absl::StreamFormat("model       %s\nversion     %d\nstate       %s\n", model.name(),
                            model.version(), v1::ModelInfo::State_Name(model.state()));
  if (!model.error().empty()) out << "error       " << model.error() << "\n";
  if (model.has_config()) {
    out << "operation   " << DescribeOperation(model.config()) << "\n";
    std::vector<std::string> dtypes;
    for (const int dtype : model.config().dtypes()) {
      dtypes.push_back(v1::DataType_Name(static_cast<v1::DataType>(dtype)));
    }
    out << "types       " << (dtypes.empty() ? "all" : absl::StrJoin(dtypes, " ")) << "\n";
    if (!model.config().description().empty()) {
      out << "description " << model.config().description() << "\n";
    }
  }
  PrintTensors("input", model.inputs(), out);
  PrintTensors("output", model.outputs(), out);
  for (const v1::Parameter& parameter : model.parameters()) {
    out << absl::StreamFormat("parameter   %s %s %s\n", parameter.name(),
                              v1::DataType_Name(parameter.dtype()), ShapeText(parameter.shape()));
  }
  if (model.state() == v1::ModelInfo::READY) PrintNames(model, out);
  out << absl::StreamFormat("loaded in   %.3f ms\n", Milliseconds(model.load_ns()));
}

void PrintServerInfo(const v1::GetServerInfoResponse& info, std::ostream& out) {
  out << "version             " << info.version() << "\n"
      << "ready               " << (info.ready() ? "yes" : "no") << "\n"
      << "lanes               " << absl::StrJoin(info.lanes(), " ") << "\n"
      << "CPU instructions    " << info.simd() << "\n"
      << "CUDA                " << (info.cuda().empty() ? "not in this build" : info.cuda()) << "\n"
      << "largest request     " << Megabytes(info.max_request_bytes()) << "\n"
      << "most bytes inside   " << Megabytes(info.max_inflight_bytes()) << "\n"
      << "shared memory       "
      << (info.shared_memory_listen().empty() ? "not at a socket" : info.shared_memory_listen())
      << "\n"
      << "up for              "
      << absl::FormatDuration(absl::Trunc(absl::Nanoseconds(info.uptime_ns()), absl::Seconds(1)))
      << "\n";
}

void PrintRegions(const v1::ListSharedMemoryResponse& regions, std::ostream& out) {
  out << absl::StreamFormat("%-10s %-16s %-24s %14s %10s  %s\n", "KIND", "OWNER", "NAME", "BYTES",
                            "AGE", "");
  for (const v1::SharedMemoryInfo& region : regions.regions()) {
    const absl::Duration age = absl::Trunc(absl::Nanoseconds(region.age_ns()), absl::Seconds(1));
    std::vector<std::string> notes;
    if (!region.writable()) notes.push_back("for inputs alone");
    if (region.in_use()) notes.push_back("in use");
    if (region.broken()) notes.push_back("broken");
    if (region.page_locked()) notes.push_back("page-locked");
    if (region.kind() == v1::SharedMemoryInfo::DEVICE) {
      notes.push_back(absl::StrCat("device ", region.device()));
    }
    out << absl::StreamFormat(
        "%-10s %-16s %-24s %14d %10s  %s\n", v1::SharedMemoryInfo::Kind_Name(region.kind()),
        region.owner().empty() ? "-" : region.owner(), region.name().empty() ? "-" : region.name(),
        region.byte_size(), absl::FormatDuration(age), absl::StrJoin(notes, ", "));
  }
}

std::string DescribeStages(const v1::StageTimes& stages) {
  return absl::StrFormat(
      "decode %.3f ms, queue %.3f ms, gather %.3f ms, copy in %.3f ms, compute %.3f ms, "
      "copy out %.3f ms",
      Milliseconds(stages.decode_ns()), Milliseconds(stages.queue_ns()),
      Milliseconds(stages.gather_ns()), Milliseconds(stages.copy_in_ns()),
      Milliseconds(stages.compute_ns()), Milliseconds(stages.copy_out_ns()));
}

}  // namespace normd::client
