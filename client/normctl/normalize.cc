// `normctl normalize`: tensors from files to files, in one message or as a stream.

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/normctl/command.h"
#include "client/normctl/print.h"
#include "client/normctl/progress_bar.h"
#include "client/normctl/stream_files.h"
#include "client/normctl/tensor_files.h"
#include "client/tensor/npy.h"
#include "client/verify/compare.h"
#include "client/verify/reference_model.h"
#include "flags/flag_checks.h"
#include "nlohmann/json.hpp"

namespace normd::client {
namespace {

nlohmann::json StagesJson(const v1::StageTimes& stages) {
  return {{"decode", stages.decode_ns()},   {"queue", stages.queue_ns()},
          {"gather", stages.gather_ns()},   {"copy_in", stages.copy_in_ns()},
          {"compute", stages.compute_ns()}, {"copy_out", stages.copy_out_ns()}};
}

nlohmann::json VerifyJson(const Comparison& comparison) {
  return {{"ok", comparison.ok()},
          {"elements", comparison.elements},
          {"wrong", comparison.wrong},
          {"max_error", comparison.max_error}};
}

v1::Priority PriorityOf(absl::string_view level) {
  if (level == "low") return v1::PRIORITY_LOW;
  return level == "high" ? v1::PRIORITY_HIGH : v1::PRIORITY_NORMAL;
}

// Larger files are streamed: one message would be slower, and the server takes no message over its
// --max_request_bytes.
constexpr std::int64_t kStreamFromBytes = std::int64_t{64} << 20;

std::optional<v1::Precision> ParsePrecision(absl::string_view name) {
  if (name.empty()) return v1::PRECISION_UNSPECIFIED;
  if (name == "float32") return v1::PRECISION_FLOAT32;
  if (name == "tf32") return v1::PRECISION_TF32;
  if (name == "bf16") return v1::PRECISION_BFLOAT16;
  if (name == "float32_strict") return v1::PRECISION_FLOAT32_STRICT;
  return std::nullopt;
}

std::vector<std::int64_t> DimsOf(const Shape& shape) {
  return {shape.dims().begin(), shape.dims().end()};
}

nlohmann::json OutputsJson(absl::Span<const TensorSpec> outputs) {
  nlohmann::json json = nlohmann::json::array();
  for (const TensorSpec& output : outputs) {
    json.push_back({{"name", output.name},
                    {"dtype", norm::Name(output.dtype)},
                    {"shape", DimsOf(output.shape)}});
  }
  return json;
}

std::vector<TensorSpec> SpecsOf(const NormalizeResponse& response) {
  std::vector<TensorSpec> specs;
  for (const OutputTensor& output : response.outputs()) specs.push_back(output.spec());
  return specs;
}

absl::Status WriteOutput(const std::string& path, const OutputTensor& output) {
  absl::StatusOr<NpyWriter> writer = NpyWriter::Create(path, output.dtype(), output.shape());
  if (!writer.ok()) return writer.status();
  std::int64_t offset = 0;
  for (const ConstBytes piece : output.pieces()) {
    if (absl::Status s = writer->WriteAt(offset, piece); !s.ok()) return s;
    offset += static_cast<std::int64_t>(piece.size());
  }
  return writer->Close();
}

// What is printed of a call of either kind.
struct Told {
  std::string model;
  std::int64_t version = 0;
  TensorSpec tensor;                // The first output, or a stream's first input.
  std::vector<TensorSpec> outputs;  // All of them.
  v1::StageTimes stages;
  std::string how;      // After the tensor: "in 3.214 ms on cpu:0, in a batch of 2".
  nlohmann::json json;  // The fields that only this kind has.
};

Told ToldOf(const NormalizeResponse& response, Duration elapsed) {
  const double ms = std::chrono::duration<double, std::milli>(elapsed).count();
  const v1::BatchInfo& batch = response.batch();
  return {
      response.model(),
      response.version(),
      response.outputs().front().spec(),
      SpecsOf(response),
      response.stages(),
      absl::StrFormat("in %.3f ms on %s, in a batch of %d", ms, batch.lane(), batch.requests()),
      {{"elapsed_ms", ms},
       {"batch", {{"id", batch.id()}, {"requests", batch.requests()}, {"lane", batch.lane()}}}}};
}

Told ToldOf(const StreamResult& result, const InputFile& input, Duration elapsed) {
  const double seconds = std::chrono::duration<double>(elapsed).count();
  const double rate = static_cast<double>(input.file.bytes()) / seconds / 1e9;
  const v1::NormalizeStreamTrailer& trailer = result.trailer;
  return {result.model,
          result.version,
          input.spec(),
          result.outputs,
          trailer.stages(),
          absl::StrFormat("streamed in %.3f s, %.2f GB/s, as %d pieces in %d batches", seconds,
                          rate, trailer.pieces(), trailer.batches()),
          {{"elapsed_ms", seconds * 1e3},
           {"gb_per_second", rate},
           {"stream",
            {{"pieces", trailer.pieces()},
             {"batches", trailer.batches()},
             {"window_bytes", result.window_bytes}}}}};
}

class NormalizeCommand final : public Command {
 public:
  const char* name() const override { return "normalize"; }
  const char* arguments() const override { return "IN.npy"; }
  const char* summary() const override {
    return "normalizes a tensor; several inputs: each as NAME=IN.npy";
  }
  int argument_count() const override { return 1; }
  bool takes_further_arguments() const override { return true; }

  void AddFlags(FlagSet& flags) override {
    flags.Add("model", &model_, "MODEL", "Model that normalizes; required.");
    flags.Add("version", &version_, "N", "Version; 0 is the highest loaded.");
    flags.Add("y", &y_path_, "Y.npy", "Second input, for a model that takes one; as y=Y.npy.");
    flags.Add(
        "precision", &precision_, "NAME",
        "Precision of matrix products: float32, tf32, bf16, float32_strict; empty: the model's.",
        [](const std::string& name) {
          return ParsePrecision(name) ? "" : "float32, tf32, bf16, float32_strict or nothing";
        });
    flags.Add("priority", &priority_, "LEVEL", "low, normal or high, among this model's requests.",
              BeOneOf({"low", "normal", "high"}));
    flags.Add("queue_timeout", &queue_timeout_, "DURATION",
              "Time that the request may wait on the server; 0: as long as --timeout.",
              [](absl::Duration time) { return time < absl::ZeroDuration() ? "0 or more" : ""; });
    flags.Add(
        "o", &output_paths_, "OUT.npy",
        "File for the result; without it none is written. With several results: NAME=OUT.npy, "
        "once for each wanted one.");
    flags.Add(
        "outputs", &outputs_, "NAMES",
        "Wanted outputs, comma-separated, such as y,mean; empty: those that -o names, or else "
        "the model's default ones.");
    flags.Add("shared_memory", &shared_memory_, "ADDRESS",
              "The --shared_memory_listen of a server on this machine, such as "
              "unix:///run/normd/regions: the tensors lie in memory that both share, not in "
              "messages, and nothing is streamed.");
    flags.Add("stream", &stream_, "WHEN",
              "always, never, or auto: files over 64 MiB. A stream needs little memory; only a "
              "given --timeout limits its time.",
              BeOneOf({"auto", "always", "never"}));
    flags.Add("verify", &verify_, "",
              "Checks every element against float64; needs the repository.");
    flags.Add("model_repository", &repository_, "DIR",
              "Folder of the server's models, for --verify.");
  }
  absl::Status Check(absl::Span<const std::string> /*arguments*/) const override {
    if (model_.empty()) return absl::InvalidArgumentError("--model: wanted a model's name");
    if (!shared_memory_.empty() && stream_ == "always") {
      return absl::InvalidArgumentError("--stream: always, wanted auto or never in shared memory");
    }
    if (verify_ && repository_.empty()) {
      return absl::InvalidArgumentError(
          "--verify: wanted --model_repository=DIR too: parameters are not sent by the server");
    }
    std::vector<FileFlag> files;
    for (const std::string& output : output_paths_) {
      TensorPath given = ParseTensorPath(output);
      files.push_back({given.name.empty() ? "-o" : "-o " + given.name, std::move(given.path)});
    }
    return CheckFilesDiffer(files);
  }

  absl::Status Run(const Context& context) override {
    std::vector<TensorPath> paths;
    for (const std::string& argument : context.arguments) {
      paths.push_back(ParseTensorPath(argument));
    }
    if (!y_path_.empty()) paths.push_back({"y", y_path_});
    absl::StatusOr<std::vector<InputFile>> inputs = OpenInputs(std::move(paths));
    if (!inputs.ok()) return inputs.status();
    std::int64_t bytes = 0;
    for (const InputFile& input : *inputs) bytes += input.file.bytes();
    const bool streams = stream_ == "always" ||
                         (stream_ == "auto" && shared_memory_.empty() && bytes > kStreamFromBytes);
    if (!streams) return RunInOneMessage(context, *inputs);
    if (absl::Status sorted = SortAsModel(context, *inputs); !sorted.ok()) return sorted;
    return RunStreamed(context, *inputs);
  }

 private:
  // A stream carries several inputs in the model's order, whatever the order of the arguments. The
  // server refuses inputs that the model does not take.
  absl::Status SortAsModel(const Context& context, std::vector<InputFile>& inputs) const {
    if (inputs.size() < 2) return absl::OkStatus();
    const auto model = context.client->GetModel(model_, version_, context.timeout);
    if (!model.ok()) return model.status();
    const auto place = [&](const InputFile& input) {
      int at = 0;
      while (at < model->inputs_size() && model->inputs(at).name() != input.name) ++at;
      return at;
    };
    std::stable_sort(inputs.begin(), inputs.end(),
                     [&](const InputFile& a, const InputFile& b) { return place(a) < place(b); });
    return absl::OkStatus();
  }

  static absl::Status Verdict(const Comparison& comparison) {
    if (comparison.ok()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("verification failed: ", Describe(comparison)));
  }

  absl::Status RunInOneMessage(const Context& context, const std::vector<InputFile>& inputs) const {
    NormalizeRequest request;
    SetFields(request);
    request.timeout = context.timeout;
    const absl::Status read = shared_memory_.empty() ? ReadInputs(inputs, request)
                                                     : ShareTensors(context, inputs, request);
    if (!read.ok()) return read;
    const SteadyClock clock{};
    const TimePoint begin = clock.Now();
    const absl::StatusOr<NormalizeResponse> response = context.client->Normalize(request);
    if (!response.ok()) return response.status();
    const Duration elapsed = clock.Now() - begin;

    if (absl::Status written = Write(*response); !written.ok()) return written;
    absl::StatusOr<Comparison> comparison = Comparison();
    if (verify_) comparison = Verify(request, *response);
    if (!comparison.ok()) return comparison.status();
    Print(context, ToldOf(*response, elapsed), *comparison);
    return Verdict(*comparison);
  }

  // Sets what both kinds of call say beside their tensors and their time.
  void SetFields(CallFields& fields) const {
    fields.model = model_;
    fields.version = version_;
    fields.priority = PriorityOf(priority_);
    fields.queue_timeout = absl::ToChronoNanoseconds(queue_timeout_);
    fields.precision = *ParsePrecision(precision_);
    fields.outputs = WantedOutputs();
  }

  static absl::Status ReadInputs(const std::vector<InputFile>& inputs, NormalizeRequest& request) {
    for (const InputFile& input : inputs) {
      const absl::StatusOr<Tensor> tensor = input.file.ReadAll();
      if (!tensor.ok()) return tensor.status();
      request.inputs.push_back(tensor->named(input.name));
    }
    return absl::OkStatus();
  }

  // Reads the inputs into memory shared with the server, with room for the outputs.
  absl::Status ShareTensors(const Context& context, const std::vector<InputFile>& inputs,
                            NormalizeRequest& request) const {
    const auto model = context.client->GetModel(model_, version_, context.timeout);
    if (!model.ok()) return model.status();
    return ShareFiles({shared_memory_, context.token}, *model, inputs, request);
  }

  absl::StatusOr<Comparison> Verify(const NormalizeRequest& request,
                                    const NormalizeResponse& response) const {
    const absl::StatusOr<ReferenceModel> reference =
        ReferenceModel::Load(repository_, model_, response.version());
    if (!reference.ok()) return reference.status();
    const absl::StatusOr<std::vector<ReferenceOutput>> expected =
        reference->Compute(request.inputs, request.outputs);
    if (!expected.ok()) return expected.status();
    std::vector<ReceivedTensor> received;
    for (const OutputTensor& output : response.outputs()) {
      // Older servers send unwanted outputs too.
      const auto& wanted = request.outputs;
      const bool named = std::find(wanted.begin(), wanted.end(), output.name()) != wanted.end();
      if (!wanted.empty() && !output.name().empty() && !named) continue;
      received.push_back({&output.spec(), output.pieces()});
    }
    return CompareOutputs(received, *expected);
  }

  // None: the outputs that come by default.
  std::vector<std::string> WantedOutputs() const {
    if (!outputs_.empty()) return absl::StrSplit(outputs_, ',');
    std::vector<std::string> names;
    for (const std::string& path : output_paths_) {
      names.push_back(ParseTensorPath(path).name);
      if (names.back().empty()) return {};
    }
    return names;
  }

  // The outputs' files, from -o.
  absl::StatusOr<std::vector<std::string>> PathsOf(absl::Span<const TensorSpec> outputs) const {
    std::vector<TensorPath> given;
    for (const std::string& path : output_paths_) given.push_back(ParseTensorPath(path));
    return OutputPaths(outputs, given);
  }

  absl::Status RunStreamed(const Context& context, const std::vector<InputFile>& inputs) const {
    if (verify_ && output_paths_.empty()) {
      return absl::InvalidArgumentError("--verify: a stream's result is verified in its file, -o");
    }
    const SteadyClock clock{};
    StreamRequest request;
    SetFields(request);
    if (context.timeout_given) request.timeout = context.timeout;
    std::vector<std::string> paths;
    const auto choose_paths = [&](absl::Span<const TensorSpec> outputs) {
      absl::StatusOr<std::vector<std::string>> chosen = PathsOf(outputs);
      if (chosen.ok()) paths = *chosen;
      return chosen;
    };
    const TimePoint begin = clock.Now();
    absl::StatusOr<StreamResult> result;
    {
      ProgressBar bar(context.terminal, clock);
      request.on_progress = [&bar](const StreamProgress& progress) {
        bar.Update(progress.received_bytes, progress.total_bytes);
      };
      result = StreamFiles(*context.client, request, inputs, choose_paths);
    }
    if (!result.ok()) return result.status();
    const Duration elapsed = clock.Now() - begin;
    absl::StatusOr<Comparison> comparison = Comparison();
    if (verify_) comparison = VerifyFiles(inputs, *result, paths);
    if (!comparison.ok()) return comparison.status();
    Print(context, ToldOf(*result, inputs.front(), elapsed), *comparison);
    return Verdict(*comparison);
  }

  absl::StatusOr<Comparison> VerifyFiles(const std::vector<InputFile>& inputs,
                                         const StreamResult& result,
                                         const std::vector<std::string>& paths) const {
    const absl::StatusOr<ReferenceModel> reference =
        ReferenceModel::Load(repository_, model_, result.version);
    if (!reference.ok()) return reference.status();
    std::vector<InputFile> outputs;
    for (std::size_t i = 0; i < paths.size(); ++i) {
      if (paths[i].empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--verify: a stream's result is verified in its file, -o ",
                         result.outputs[i].name, "=FILE"));
      }
      absl::StatusOr<NpyReader> file = NpyReader::Open(paths[i]);
      if (!file.ok()) return file.status();
      outputs.push_back({result.outputs[i].name, *std::move(file)});
    }
    return CompareFiles(*reference, inputs, outputs, WantedOutputs());
  }

  absl::Status Write(const NormalizeResponse& response) const {
    const absl::StatusOr<std::vector<std::string>> paths = PathsOf(SpecsOf(response));
    if (!paths.ok()) return paths.status();
    for (std::size_t i = 0; i < paths->size(); ++i) {
      if ((*paths)[i].empty()) continue;
      absl::Status written = WriteOutput((*paths)[i], response.outputs()[i]);
      if (!written.ok()) return written;
    }
    return absl::OkStatus();
  }

  void Print(const Context& context, const Told& told, const Comparison& comparison) const {
    if (context.json) {
      nlohmann::json report = told.json;
      report.update({{"model", told.model},
                     {"version", told.version},
                     {"dtype", norm::Name(told.tensor.dtype)},
                     {"shape", DimsOf(told.tensor.shape)},
                     {"outputs", OutputsJson(told.outputs)},
                     {"stages_ns", StagesJson(told.stages)}});
      if (verify_) report["verify"] = VerifyJson(comparison);
      *context.out << report.dump(2) << "\n";
      return;
    }
    *context.out << absl::StreamFormat("%s version %d: %s %s %s\n  %s\n", told.model, told.version,
                                       norm::Name(told.tensor.dtype), told.tensor.shape.ToString(),
                                       told.how, DescribeStages(told.stages));
    for (std::size_t i = 1; i < told.outputs.size(); ++i) {
      const TensorSpec& output = told.outputs[i];
      *context.out << "  and " << output.name << ": " << norm::Name(output.dtype) << " "
                   << output.shape.ToString() << "\n";
    }
    if (verify_) {
      *context.out << "  verified against float64: " << (comparison.ok() ? "ok, " : "FAILED, ")
                   << Describe(comparison) << "\n";
    }
    for (const std::string& path : output_paths_) *context.out << "  written to " << path << "\n";
  }

  std::string model_;
  std::int64_t version_ = 0;
  std::string priority_ = "normal";
  absl::Duration queue_timeout_;
  std::string y_path_;
  std::string precision_;
  std::vector<std::string> output_paths_;
  std::string outputs_;
  std::string shared_memory_;
  std::string stream_ = "auto";
  bool verify_ = false;
  std::string repository_;
};

}  // namespace

std::unique_ptr<Command> MakeNormalizeCommand() { return std::make_unique<NormalizeCommand>(); }

}  // namespace normd::client
