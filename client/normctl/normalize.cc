// `normctl normalize`: one tensor from a file to a file.

#include <chrono>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/normctl/command.h"
#include "client/normctl/print.h"
#include "client/tensor/npy.h"
#include "client/verify/compare.h"
#include "client/verify/reference_model.h"
#include "nlohmann/json.hpp"

namespace normd::client {
namespace {

nlohmann::json StagesJson(const v1::StageTimes& stages) {
  return {{"decode", stages.decode_ns()},   {"queue", stages.queue_ns()},
          {"gather", stages.gather_ns()},   {"copy_in", stages.copy_in_ns()},
          {"compute", stages.compute_ns()}, {"copy_out", stages.copy_out_ns()}};
}

std::optional<v1::Priority> ParsePriority(absl::string_view level) {
  if (level == "low") return v1::PRIORITY_LOW;
  if (level == "normal") return v1::PRIORITY_NORMAL;
  if (level == "high") return v1::PRIORITY_HIGH;
  return std::nullopt;
}

class NormalizeCommand final : public Command {
 public:
  const char* name() const override { return "normalize"; }
  const char* arguments() const override { return "IN.npy"; }
  const char* summary() const override {
    return "normalizes a tensor: --model M in.npy -o out.npy";
  }
  int argument_count() const override { return 1; }

  void AddFlags(FlagSet& flags) override {
    flags.Add("model", &model_, "MODEL", "Model that normalizes; required.");
    flags.Add("version", &version_, "N", "Version; 0 is the highest loaded.");
    flags.Add("priority", &priority_, "LEVEL", "low, normal or high, among this model's requests.");
    flags.Add("queue_timeout", &queue_timeout_, "DURATION",
              "How long it may wait on the server; 0: as long as --timeout.");
    flags.Add("o", &output_path_, "OUT.npy", "File for the result; without it none is written.");
    flags.Add("verify", &verify_, "",
              "Checks every element against float64; needs the repository.");
    flags.Add("model_repository", &repository_, "DIR",
              "Folder of the server's models, for --verify.");
  }
  absl::Status Check() const override {
    if (model_.empty()) return absl::InvalidArgumentError("--model: wanted a model's name");
    if (!ParsePriority(priority_).has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--priority: \"", priority_, "\", wanted low, normal or high"));
    }
    if (queue_timeout_ < absl::ZeroDuration()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--queue_timeout: ", absl::FormatDuration(queue_timeout_), ", wanted 0 or more"));
    }
    if (verify_ && repository_.empty()) {
      return absl::InvalidArgumentError(
          "--verify: wanted --model_repository=DIR too: parameters are not sent by the server");
    }
    return absl::OkStatus();
  }

  absl::Status Run(const Context& context) override {
    const absl::StatusOr<Tensor> input = ReadNpy(context.arguments[0]);
    if (!input.ok()) return input.status();
    NormalizeRequest request;
    request.model = model_;
    request.version = version_;
    request.priority = *ParsePriority(priority_);
    request.queue_timeout = absl::ToChronoNanoseconds(queue_timeout_);
    request.input = input->view();
    request.input_owner = input->owner();
    request.timeout = context.timeout;
    const SteadyClock clock{};
    const TimePoint begin = clock.Now();
    const absl::StatusOr<NormalizeResponse> response = context.client->Normalize(request);
    if (!response.ok()) return response.status();
    const Duration elapsed = clock.Now() - begin;

    if (absl::Status written = Write(*response); !written.ok()) return written;
    Comparison comparison;
    if (verify_) {
      const absl::StatusOr<ReferenceModel> reference =
          ReferenceModel::Load(repository_, model_, response->version());
      if (!reference.ok()) return reference.status();
      const absl::StatusOr<std::vector<double>> expected = reference->Compute(input->view());
      if (!expected.ok()) return expected.status();
      comparison = Compare(response->dtype(), response->pieces(), *expected);
    }
    Print(context, *response, elapsed, comparison);
    if (comparison.ok()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("verification failed: ", Describe(comparison)));
  }

 private:
  absl::Status Write(const NormalizeResponse& response) const {
    if (output_path_.empty()) return absl::OkStatus();
    absl::StatusOr<NpyWriter> writer =
        NpyWriter::Create(output_path_, response.dtype(), response.shape());
    if (!writer.ok()) return writer.status();
    std::int64_t offset = 0;
    for (const absl::Span<const std::byte> piece : response.pieces()) {
      if (absl::Status s = writer->WriteAt(offset, piece); !s.ok()) return s;
      offset += static_cast<std::int64_t>(piece.size());
    }
    return writer->Close();
  }

  void Print(const Context& context, const NormalizeResponse& response, Duration elapsed,
             const Comparison& comparison) const {
    const double ms = std::chrono::duration<double, std::milli>(elapsed).count();
    const v1::BatchInfo& batch = response.batch();
    if (context.json) {
      const auto dims = response.shape().dims();
      nlohmann::json report = {
          {"model", response.model()},
          {"version", response.version()},
          {"dtype", norm::Name(response.dtype())},
          {"shape", std::vector<std::int64_t>(dims.begin(), dims.end())},
          {"elapsed_ms", ms},
          {"stages_ns", StagesJson(response.stages())},
          {"batch", {{"id", batch.id()}, {"requests", batch.requests()}, {"lane", batch.lane()}}}};
      if (verify_) {
        report["verify"] = {{"ok", comparison.ok()},
                            {"elements", comparison.elements},
                            {"wrong", comparison.wrong},
                            {"max_error", comparison.max_error}};
      }
      *context.out << report.dump(2) << "\n";
      return;
    }
    *context.out << absl::StreamFormat(
        "%s version %d: %s %s in %.3f ms on %s, in a batch of %d\n  %s\n", response.model(),
        response.version(), norm::Name(response.dtype()), response.shape().ToString(), ms,
        batch.lane(), batch.requests(), DescribeStages(response.stages()));
    if (verify_) {
      *context.out << "  verified against float64: " << (comparison.ok() ? "ok, " : "FAILED, ")
                   << Describe(comparison) << "\n";
    }
    if (!output_path_.empty()) *context.out << "  written to " << output_path_ << "\n";
  }

  std::string model_;
  std::int64_t version_ = 0;
  std::string priority_ = "normal";
  absl::Duration queue_timeout_;
  std::string output_path_;
  bool verify_ = false;
  std::string repository_;
};

}  // namespace

std::unique_ptr<Command> MakeNormalizeCommand() { return std::make_unique<NormalizeCommand>(); }

}  // namespace normd::client
