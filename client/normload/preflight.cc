#include "client/normload/preflight.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/normload/default_shape.h"
#include "client/verify/compare.h"
#include "client/verify/reference_model.h"

namespace normd::load {
namespace {

// A first call connects, and may compute what later ones find ready: a tight deadline of the run's
// calls is not for it.
Duration CallTimeout(const ProgramOptions& options) {
  constexpr Duration kLeast = std::chrono::seconds(10);
  return std::max(kLeast, Duration{absl::ToChronoNanoseconds(options.timeout)});
}

// The same; of a model that is not there, with those that are.
absl::Status WithLoadedModels(client::Client& client, const absl::Status& status) {
  if (status.code() != absl::StatusCode::kNotFound) return status;
  const auto models = client.ListModels(std::chrono::seconds(1));
  if (!models.ok()) return status;
  std::set<std::string> names;
  for (const v1::ModelInfo& model : models->models()) {
    if (model.state() == v1::ModelInfo::READY) names.insert(model.name());
  }
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "; loaded: ",
                                   names.empty() ? "nothing" : absl::StrJoin(names, ", ")));
}

absl::Status For(const Item& item, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(item.entry.ToString(), ": ", status.message()));
}

// An answer of either kind of call.
struct Answer {
  std::int64_t version = 0;
  norm::DType dtype = norm::DType::kFloat32;
  std::vector<absl::Span<const std::byte>> pieces;  // Of one of the two below.
  std::optional<client::NormalizeResponse> response;
  std::vector<std::byte> bytes;
};

absl::Status CallOnce(client::Client& client, const Item& item, const ProgramOptions& options,
                      Answer& answer) {
  client::NormalizeRequest request;
  request.model = item.entry.model;
  request.version = options.version;
  request.input = item.input.view();
  request.input_owner = item.input.owner();
  if (item.y) {
    request.y = item.y->view();
    request.y_owner = item.y->owner();
  }
  request.timeout = CallTimeout(options);
  absl::StatusOr<client::NormalizeResponse> response = client.Normalize(request);
  if (!response.ok()) return response.status();
  answer.response = *std::move(response);
  answer.version = answer.response->version();
  answer.dtype = answer.response->dtype();
  answer.pieces.assign(answer.response->pieces().begin(), answer.response->pieces().end());
  return absl::OkStatus();
}

absl::Status StreamOnce(client::Client& client, const Item& item, const ProgramOptions& options,
                        Answer& answer) {
  client::StreamRequest request;
  request.model = item.entry.model;
  request.version = options.version;
  request.dtype = item.entry.dtype;
  request.shape = item.entry.shape;
  request.timeout = CallTimeout(options);
  request.chunk_bytes = item.entry.stream_chunk_bytes;
  absl::Span<const std::byte> rest = item.input.bytes();
  const auto result = client.NormalizeStream(
      request,
      [&rest](absl::Span<std::byte> out) {
        std::copy_n(rest.begin(), out.size(), out.begin());
        rest.remove_prefix(out.size());
        return absl::OkStatus();
      },
      [&](absl::Span<const std::byte> bytes) {
        if (options.verify) answer.bytes.insert(answer.bytes.end(), bytes.begin(), bytes.end());
        return absl::OkStatus();
      });
  if (!result.ok()) return result.status();
  answer.version = result->version;
  answer.dtype = item.entry.dtype;
  answer.pieces = {answer.bytes};
  return absl::OkStatus();
}

absl::StatusOr<Expectation> Expect(const Item& item, const Answer& answer,
                                   const std::string& repository) {
  Expectation expectation;
  expectation.version = answer.version;
  const absl::StatusOr<client::ReferenceModel> reference =
      client::ReferenceModel::Load(repository, item.entry.model, answer.version);
  if (!reference.ok()) return reference.status();
  const client::TensorView x = item.input.view();
  std::optional<client::TensorView> y;
  if (item.y) y = item.y->view();
  expectation.shape = reference->OutputShape(x.shape);
  absl::StatusOr<std::vector<double>> elements = reference->Compute(x, y ? &*y : nullptr);
  if (!elements.ok()) return elements.status();
  expectation.elements = *std::move(elements);
  const client::Comparison comparison =
      client::Compare(answer.dtype, answer.pieces, expectation.elements);
  if (!comparison.ok()) {
    return absl::DataLossError(absl::StrCat("wrong answer: ", client::Describe(comparison)));
  }
  return expectation;
}

}  // namespace

absl::Status ChooseShapes(client::Client& client, ProgramOptions& options) {
  for (MixEntry& entry : options.mix) {
    if (!entry.shape_from_model) continue;
    const auto model = client.GetModel(entry.model, options.version, CallTimeout(options));
    if (!model.ok()) return WithLoadedModels(client, model.status());
    absl::StatusOr<DefaultShapes> shapes = DefaultShapesFor(model->config());
    if (!shapes.ok()) {
      return absl::Status(shapes.status().code(),
                          absl::StrCat(entry.model, ": ", shapes.status().message()));
    }
    entry.shape = shapes->x;
    if (!entry.y) entry.y = shapes->y;
    entry.shape_from_model = false;
  }
  return absl::OkStatus();
}

absl::StatusOr<Preflight> RunPreflight(client::Client& client, const Workload& workload,
                                       const ProgramOptions& options) {
  Preflight preflight;
  auto server = client.GetServerInfo(CallTimeout(options));
  if (!server.ok()) return server.status();
  preflight.server = *std::move(server);
  for (const Item& item : workload.items()) {
    Answer answer;
    const absl::Status called = item.entry.streamed() ? StreamOnce(client, item, options, answer)
                                                      : CallOnce(client, item, options, answer);
    if (!called.ok()) return For(item, WithLoadedModels(client, called));
    if (!options.verify) continue;
    absl::StatusOr<Expectation> expectation = Expect(item, answer, options.model_repository);
    if (!expectation.ok()) return For(item, expectation.status());
    preflight.expectations.push_back(*std::move(expectation));
  }
  return preflight;
}

}  // namespace normd::load
