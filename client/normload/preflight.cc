#include "client/normload/preflight.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/verify/compare.h"
#include "client/verify/reference_model.h"

namespace normd::load {
namespace {

absl::Status For(const Item& item, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(item.entry.ToString(), ": ", status.message()));
}

absl::StatusOr<Expectation> Expect(const Item& item, const client::NormalizeResponse& response,
                                   const std::string& repository) {
  Expectation expectation;
  expectation.version = response.version();
  const absl::StatusOr<client::ReferenceModel> reference =
      client::ReferenceModel::Load(repository, item.entry.model, response.version());
  if (!reference.ok()) return reference.status();
  const client::TensorView x = item.input.view();
  std::optional<client::TensorView> y;
  if (item.y) y = item.y->view();
  expectation.shape = reference->OutputShape(x.shape);
  absl::StatusOr<std::vector<double>> elements = reference->Compute(x, y ? &*y : nullptr);
  if (!elements.ok()) return elements.status();
  expectation.elements = *std::move(elements);
  const client::Comparison comparison =
      client::Compare(response.dtype(), response.pieces(), expectation.elements);
  if (!comparison.ok()) {
    return absl::DataLossError(absl::StrCat("wrong answer: ", client::Describe(comparison)));
  }
  return expectation;
}

}  // namespace

absl::StatusOr<Preflight> RunPreflight(client::Client& client, const Workload& workload,
                                       const ProgramOptions& options) {
  Preflight preflight;
  const Duration timeout = absl::ToChronoNanoseconds(options.timeout);
  auto server = client.GetServerInfo(timeout);
  if (!server.ok()) return server.status();
  preflight.server = *std::move(server);
  for (const Item& item : workload.items()) {
    client::NormalizeRequest request;
    request.model = item.entry.model;
    request.version = options.version;
    request.input = item.input.view();
    request.input_owner = item.input.owner();
    if (item.y) {
      request.y = item.y->view();
      request.y_owner = item.y->owner();
    }
    request.timeout = timeout;
    const auto response = client.Normalize(request);
    if (!response.ok()) return For(item, response.status());
    if (!options.verify) continue;
    absl::StatusOr<Expectation> expectation = Expect(item, *response, options.model_repository);
    if (!expectation.ok()) return For(item, expectation.status());
    preflight.expectations.push_back(*std::move(expectation));
  }
  return preflight;
}

}  // namespace normd::load
