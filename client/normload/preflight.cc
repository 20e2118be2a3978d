#include "client/normload/preflight.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/channel_security.h"
#include "client/device_region.h"
#include "client/output_specs.h"
#include "client/shared_region.h"
#include "client/tensor/stream_order.h"
#include "client/verify/compare.h"
#include "client/verify/default_inputs.h"
#include "client/verify/reference_model.h"

namespace normd::load {
namespace {

// A first call connects, and may compute what later ones reuse: a tight deadline of the run's calls
// does not apply to it.
Duration CallTimeout(const ProgramOptions& options) {
  constexpr Duration kLeast = std::chrono::seconds(10);
  return std::max(kLeast, Duration{absl::ToChronoNanoseconds(options.timeout)});
}

// The same error; for an unknown model also the loaded ones' names.
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

// A response of either kind of call; it has outputs only for verification.
struct Reply {
  std::int64_t version = 0;
  std::int64_t samples = 0;  // Samples of a stream's tensors.
  std::vector<client::TensorSpec> specs;
  std::vector<client::Tensor> outputs;
};

client::NormalizeRequest FirstRequest(const Item& item, const ProgramOptions& options) {
  client::NormalizeRequest request = RequestFor(item, options.protocol, options.version);
  request.timeout = CallTimeout(options);
  return request;
}

// The call may wait in the queue for any time, for CallTimeout's reason. `slots`: the first slot
// has the request's outputs; null: they come in messages.
absl::StatusOr<Reply> CallOnce(client::Client& client, client::NormalizeRequest request,
                               const SharedSlots* slots, const ProgramOptions& options) {
  request.queue_timeout = Duration{0};
  const absl::StatusOr<client::NormalizeResponse> response = client.Normalize(request);
  if (!response.ok()) return response.status();
  Reply reply;
  reply.version = response->version();
  if (!options.verify) return reply;
  for (const client::OutputTensor& output : response->outputs()) {
    reply.specs.push_back(output.spec());
    if (slots != nullptr) continue;
    absl::StatusOr<client::Tensor> tensor = output.ToTensor();
    if (!tensor.ok()) return tensor.status();
    reply.outputs.push_back(*std::move(tensor));
  }
  if (slots == nullptr) return reply;
  absl::StatusOr<std::vector<client::Tensor>> outputs = slots->ReadOutputs(0, *response);
  if (!outputs.ok()) return outputs.status();
  reply.outputs = *std::move(outputs);
  return reply;
}

absl::StatusOr<Reply> StreamOnce(client::Client& client, const Item& item,
                                 const ProgramOptions& options) {
  client::StreamRequest request;
  SetFields(item, options.version, request);
  request.queue_timeout = Duration{0};  // As in CallOnce.
  request.timeout = CallTimeout(options);
  request.inputs = item.Specs();
  request.chunk_bytes = item.entry.stream_chunk_bytes;
  client::Tensor joined = item.inputs.front();
  ConstBytes rest = joined.bytes();
  request.on_accepted = [&](const client::StreamResult& accepted) {
    if (item.inputs.size() == 1) return absl::OkStatus();
    absl::StatusOr<client::Tensor> stream = client::JoinStream(item.inputs, accepted.samples);
    if (!stream.ok()) return stream.status();
    joined = *std::move(stream);
    rest = joined.bytes();
    return absl::OkStatus();
  };
  std::vector<std::byte> stream;
  const auto result = client.NormalizeStream(
      request,
      [&rest](absl::Span<std::byte> out) {
        std::copy_n(rest.begin(), out.size(), out.begin());
        rest.remove_prefix(out.size());
        return absl::OkStatus();
      },
      [&](ConstBytes bytes) {
        if (options.verify) stream.insert(stream.end(), bytes.begin(), bytes.end());
        return absl::OkStatus();
      });
  if (!result.ok()) return result.status();
  Reply reply;
  reply.version = result->version;
  reply.samples = result->samples;
  if (!options.verify) return reply;
  absl::StatusOr<std::vector<client::Tensor>> outputs =
      client::SplitStream(result->outputs, stream, result->samples);
  if (!outputs.ok()) return outputs.status();
  reply.specs = result->outputs;
  reply.outputs = *std::move(outputs);
  return reply;
}

// The calls that the connections' backlogs admit at once.
std::size_t CallsAtOnce(const ProgramOptions& options) {
  const std::size_t most =
      static_cast<std::size_t>(options.connections) * static_cast<std::size_t>(options.max_sending);
  return options.open_loop() ? most : std::min(most, static_cast<std::size_t>(options.concurrency));
}

using MadeRegion = absl::StatusOr<std::shared_ptr<const client::Region>>;

// Memory of the plane that the options name.
MadeRegion MakeRegion(const ProgramOptions& options, std::size_t bytes) {
  if (options.plane == Plane::kDevice) {
    client::ClientOptions connection;  // The region's own, because it outlives the others.
    options.connection.Set(connection);
    auto client = client::Client::Create(options.server, connection);
    if (!client.ok()) return client.status();
    return client::DeviceRegion::Allocate(*std::move(client), options.plane_flags.device, bytes);
  }
  std::string token;
  if (!options.connection.token_file.empty()) {
    absl::StatusOr<std::string> read = client::ReadToken(options.connection.token_file);
    if (!read.ok()) return read.status();
    token = *std::move(read);
  }
  return client::SharedRegion::Create(options.plane_flags.address, bytes, token);
}

// Makes shared memory for the item.
absl::StatusOr<std::shared_ptr<SharedSlots>> ShareItem(client::Client& client, const Item& item,
                                                       const ProgramOptions& options) {
  const Duration timeout = CallTimeout(options);
  const auto model = client.GetModel(item.entry.model, options.version, timeout);
  if (!model.ok()) return model.status();
  const auto outputs = client::OutputSpecs(*model, item.Specs(), item.entry.outputs);
  if (!outputs.ok()) return outputs.status();
  SharedSlotsOptions shared;
  shared.make = [&](std::size_t bytes) { return MakeRegion(options, bytes); };
  shared.flag = options.plane == Plane::kDevice ? "cuda_device" : "shared_memory";
  shared.slots = CallsAtOnce(options);
  absl::StatusOr<std::unique_ptr<SharedSlots>> slots =
      SharedSlots::Create(FirstRequest(item, options), *outputs, shared);
  if (!slots.ok()) return slots.status();
  return std::shared_ptr<SharedSlots>(*std::move(slots));
}

// Sends one call in the same way as the run's calls; shared memory is added to `slots`.
absl::StatusOr<Reply> CallItem(client::Client& client, const Item& item,
                               const ProgramOptions& options,
                               std::vector<std::shared_ptr<SharedSlots>>& slots) {
  if (item.entry.streamed()) return StreamOnce(client, item, options);
  if (options.plane != Plane::kShared && options.plane != Plane::kDevice) {
    return CallOnce(client, FirstRequest(item, options), nullptr, options);
  }
  absl::StatusOr<std::shared_ptr<SharedSlots>> shared = ShareItem(client, item, options);
  if (!shared.ok()) return shared.status();
  slots.push_back(*std::move(shared));
  return CallOnce(client, slots.back()->first(), slots.back().get(), options);
}

absl::StatusOr<Expectation> Expect(const Item& item, const Reply& reply,
                                   const std::string& repository) {
  Expectation expectation;
  expectation.version = reply.version;
  const absl::StatusOr<client::ReferenceModel> reference =
      client::ReferenceModel::Load(repository, item.entry.model, reply.version);
  if (!reference.ok()) return reference.status();
  absl::StatusOr<std::vector<client::ReferenceOutput>> outputs =
      reference->Compute(item.NamedInputs(), item.entry.outputs);
  if (!outputs.ok()) return outputs.status();
  expectation.outputs = *std::move(outputs);
  const client::ReceivedTensors answered(reply.specs, reply.outputs);
  const absl::StatusOr<client::Comparison> comparison =
      client::CompareOutputs(answered.tensors(), expectation.outputs);
  if (!comparison.ok()) return comparison.status();
  if (!comparison->ok()) {
    return absl::DataLossError(absl::StrCat("wrong response: ", client::Describe(*comparison)));
  }
  return expectation;
}

// Gives the entry the input shapes that suit the model, except for inputs that it names.
void SetShapes(std::vector<client::TensorSpec> inputs, MixEntry& entry) {
  const std::vector<InputShape> named(entry.inputs.begin() + 1, entry.inputs.end());
  entry.inputs.clear();
  for (client::TensorSpec& input : inputs) {
    entry.inputs.push_back({std::move(input.name), std::move(input.shape)});
  }
  if (entry.inputs.size() == 1 && named.empty()) entry.inputs.front().name.clear();
  for (const InputShape& input : named) entry.SetInput(input.name, input.shape);
  entry.shape_from_model = false;
}

// Sorts the inputs in the model's order, and marks the indexes. The server refuses inputs that the
// model does not take.
void SetFromModel(const v1::ModelInfo& model, std::vector<InputShape>& inputs) {
  const auto place = [&](const InputShape& input) {
    int at = 0;
    while (at < model.inputs_size() && model.inputs(at).name() != input.name) ++at;
    return at;
  };
  std::stable_sort(inputs.begin() + 1, inputs.end(),
                   [&](const InputShape& a, const InputShape& b) { return place(a) < place(b); });
  for (InputShape& input : inputs) {
    if (place(input) < model.inputs_size()) input.values = model.inputs(place(input)).values();
  }
}

}  // namespace

absl::Status ChooseShapes(client::Client& client, ProgramOptions& options) {
  for (MixEntry& entry : options.mix) {
    if (!entry.shape_from_model && entry.inputs.size() == 1) continue;
    const auto model = client.GetModel(entry.model, options.version, CallTimeout(options));
    if (!model.ok()) return WithLoadedModels(client, model.status());
    if (!entry.shape_from_model) {
      SetFromModel(*model, entry.inputs);
      continue;
    }
    absl::StatusOr<std::vector<client::TensorSpec>> inputs = client::DefaultInputs(*model);
    if (!inputs.ok()) {
      return absl::Status(inputs.status().code(),
                          absl::StrCat(entry.model, ": ", inputs.status().message()));
    }
    SetShapes(*std::move(inputs), entry);
    SetFromModel(*model, entry.inputs);
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
    const absl::StatusOr<Reply> reply = CallItem(client, item, options, preflight.slots);
    if (!reply.ok()) return For(item, WithLoadedModels(client, reply.status()));
    preflight.stream_samples.push_back(reply->samples);
    if (!options.verify) continue;
    absl::StatusOr<Expectation> expectation = Expect(item, *reply, options.model_repository);
    if (!expectation.ok()) return For(item, expectation.status());
    preflight.expectations.push_back(*std::move(expectation));
  }
  return preflight;
}

}  // namespace normd::load
