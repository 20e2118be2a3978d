#include "tests/support/fake_norm_service.h"

#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/verify/reference_model.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "inference/grpc_service.grpc.pb.h"
#include "kernels/reference.h"
#include "normd/v1/norm_service.grpc.pb.h"
#include "tests/support/temp_repository.h"
#include "wire/data_type.h"

namespace normd::test {
namespace {

constexpr std::int64_t kNeverFrom = std::numeric_limits<std::int64_t>::max();

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

norm::DType DTypeOf(v1::DataType dtype) { return static_cast<norm::DType>(dtype); }

struct FakeModel {
  v1::ModelInfo info;
  std::optional<client::ReferenceModel> reference;  // One of the two.
  FakeNormService::Compute compute;
};

absl::StatusOr<client::TensorSpec> SpecOf(const v1::Tensor& tensor) {
  absl::StatusOr<Shape> shape = Shape::Create(tensor.shape());
  if (!shape.ok()) return shape.status();
  return client::TensorSpec{tensor.name(), DTypeOf(tensor.dtype()), *std::move(shape)};
}

void SetSpec(const client::TensorSpec& spec, v1::Tensor* tensor) {
  tensor->set_name(spec.name);
  tensor->set_dtype(static_cast<v1::DataType>(spec.dtype));
  for (const std::int64_t dim : spec.shape.dims()) tensor->add_shape(dim);
}

void SetInfo(const std::string& name, const std::vector<std::int64_t>& shape,
             v1::TensorInfo* info) {
  info->set_name(name);
  info->mutable_shape()->Assign(shape.begin(), shape.end());
}

std::size_t SampleBytes(const v1::Tensor& tensor, std::int64_t samples) {
  std::int64_t elements = *tensor.shape().rbegin();
  if (samples > 0) elements = Shape::Create(tensor.shape())->elements() / samples;
  return static_cast<std::size_t>(elements) * norm::SizeOf(DTypeOf(tensor.dtype()));
}

// Sends the hint that the failure has as its payload, if it has one.
void SetRetryHint(const absl::Status& failure, grpc::ServerContext& context) {
  constexpr char kKey[] = "grpc-retry-pushback-ms";
  const absl::optional<absl::Cord> hint = failure.GetPayload(kKey);
  if (hint) context.AddTrailingMetadata(kKey, std::string(*hint));
}

class Service final : public v1::NormService::Service {
 public:
  grpc::Status Normalize(grpc::ServerContext* context, const v1::NormalizeRequest* request,
                         v1::NormalizeResponse* response) override {
    const Call call = Begin(request->model(), context);
    return call.status.ok() ? Compute(*call.model, *request, call.wrong, response) : call.status;
  }

  // Computes when it has the whole input; answers in chunks of odd size.
  grpc::Status NormalizeStream(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::NormalizeStreamResponse, v1::NormalizeStreamRequest>* stream)
      override {
    constexpr std::size_t kResponseBytes = 1001;
    v1::NormalizeStreamRequest message;
    if (!stream->Read(&message) || !message.has_header()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "part: wanted the header");
    }
    v1::NormalizeRequest request = message.header();
    const Call call = Begin(request.model(), context);
    if (!call.status.ok()) return call.status;
    const std::int64_t samples = call.samples;
    v1::NormalizeStreamResponse answer;
    answer.mutable_header()->set_model(request.model());
    answer.mutable_header()->set_version(1);
    const absl::StatusOr<std::vector<v1::Tensor>> outputs = OutputsOf(*call.model, request);
    if (!outputs.ok()) return ToGrpc(outputs.status());
    for (const v1::Tensor& output : *outputs) *answer.mutable_header()->add_outputs() = output;
    answer.mutable_header()->set_max_chunk_bytes(4096);
    answer.mutable_header()->set_samples(samples);
    stream->Write(answer);
    std::string bytes;
    while (stream->Read(&message)) bytes += message.chunk();
    Deal(bytes, samples, request);
    v1::NormalizeResponse response;
    const grpc::Status status = Compute(*call.model, request, call.wrong, &response);
    if (!status.ok()) return status;
    const std::string data = Interleaved(response, samples);
    for (std::size_t at = 0; at < data.size(); at += kResponseBytes) {
      answer.set_chunk(data.substr(at, kResponseBytes));
      stream->Write(answer);
    }
    answer.mutable_trailer()->set_pieces(1);
    answer.mutable_trailer()->set_batches(1);
    stream->Write(answer);
    return grpc::Status::OK;
  }

  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override {
    MutexLock lock(mutex_);
    for (const auto& [name, model] : models_) *response->add_models() = model->info;
    return grpc::Status::OK;
  }

  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest* request,
                        v1::GetModelResponse* response) override {
    return Tell(request->model(), response->mutable_model());
  }

  grpc::Status LoadModel(grpc::ServerContext*, const v1::LoadModelRequest* request,
                         v1::LoadModelResponse* response) override {
    return Tell(request->model(), response->mutable_model());
  }

  grpc::Status UnloadModel(grpc::ServerContext*, const v1::UnloadModelRequest* request,
                           v1::UnloadModelResponse* response) override {
    MutexLock lock(mutex_);
    if (models_.erase(request->model()) == 0) return NotFound(request->model());
    response->add_versions(1);
    return grpc::Status::OK;
  }

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::GetServerInfoResponse* response) override {
    response->set_version("fake");
    response->add_lanes("fake:0");
    response->set_ready(true);
    response->set_max_request_bytes(1 << 20);
    return grpc::Status::OK;
  }

  void AddModel(FakeModel model) {
    MutexLock lock(mutex_);
    std::string name = model.info.name();
    models_.emplace(std::move(name), std::make_unique<FakeModel>(std::move(model)));
  }
  void TellTensors(const std::string& name, const FakeNormService::Tensors& inputs,
                   const FakeNormService::Tensors& outputs) {
    MutexLock lock(mutex_);
    v1::ModelInfo& info = models_.at(name)->info;
    for (const auto& [tensor, shape] : inputs) SetInfo(tensor, shape, info.add_inputs());
    for (const auto& [tensor, shape] : outputs) SetInfo(tensor, shape, info.add_outputs());
  }
  void TellSamples(std::int64_t samples) {
    MutexLock lock(mutex_);
    samples_ = samples;
  }
  void FailFrom(std::int64_t from, const absl::Status& status) {
    MutexLock lock(mutex_);
    fail_from_ = from;
    failure_ = status;
  }
  void AnswerWronglyFrom(std::int64_t from) {
    MutexLock lock(mutex_);
    wrong_from_ = from;
  }
  void HoldFrom(std::int64_t from) {
    MutexLock lock(mutex_);
    hold_from_ = from;
    changed_.SignalAll();
  }
  void WaitForCalls(std::int64_t calls) {
    MutexLock lock(mutex_);
    while (calls_ < calls) changed_.Wait(mutex_);
  }
  std::int64_t calls() const {
    MutexLock lock(mutex_);
    return calls_;
  }

 private:
  static grpc::Status NotFound(const std::string& name) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, absl::StrCat("model: no \"", name, "\""));
  }

  struct Call {
    grpc::Status status;
    const FakeModel* model = nullptr;
    bool wrong = false;
    std::int64_t samples = 0;
  };
  // Begins a Normalize or NormalizeStream when Hold lets it go. `context` may be null.
  Call Begin(const std::string& name, grpc::ServerContext* context) {
    MutexLock lock(mutex_);
    const std::int64_t number = calls_++;
    changed_.SignalAll();
    while (number >= hold_from_) changed_.Wait(mutex_);
    if (number >= fail_from_ && context != nullptr) SetRetryHint(failure_, *context);
    if (number >= fail_from_) return {.status = ToGrpc(failure_)};
    const FakeModel* model = Find(name);
    return {model == nullptr ? NotFound(name) : grpc::Status::OK, model, number >= wrong_from_,
            samples_};
  }

  const FakeModel* Find(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto it = models_.find(name);
    return it == models_.end() ? nullptr : it->second.get();
  }

  grpc::Status Tell(const std::string& name, v1::ModelInfo* info) {
    MutexLock lock(mutex_);
    const FakeModel* model = Find(name);
    if (model == nullptr) return NotFound(name);
    *info = model->info;
    return grpc::Status::OK;
  }

  // The outputs without their data.
  static absl::StatusOr<std::vector<v1::Tensor>> OutputsOf(const FakeModel& model,
                                                           const v1::NormalizeRequest& request) {
    if (model.compute) return model.compute(request);
    std::vector<client::TensorSpec> inputs;
    for (const v1::Tensor& input : request.inputs()) {
      absl::StatusOr<client::TensorSpec> spec = SpecOf(input);
      if (!spec.ok()) return spec.status();
      inputs.push_back(*std::move(spec));
    }
    const auto specs = model.reference->Outputs(inputs);
    if (!specs.ok()) return specs.status();
    std::vector<v1::Tensor> outputs;
    for (const client::TensorSpec& spec : *specs) SetSpec(spec, &outputs.emplace_back());
    return outputs;
  }

  // With several outputs, a sample of each in turn.
  static std::string Interleaved(const v1::NormalizeResponse& response, std::int64_t samples) {
    if (response.outputs_size() == 1) return response.outputs(0).data();
    std::string bytes;
    for (std::size_t sample = 0, before = 1; before != bytes.size(); ++sample) {
      before = bytes.size();
      for (const v1::Tensor& output : response.outputs()) {
        const std::size_t size = SampleBytes(output, samples);
        if (sample * size < output.data().size())
          bytes += output.data().substr(sample * size, size);
      }
    }
    return bytes;
  }

  // With several inputs, a sample of each in turn.
  static void Deal(absl::string_view bytes, std::int64_t samples, v1::NormalizeRequest& request) {
    if (request.inputs_size() == 1) {
      request.mutable_inputs(0)->set_data(std::string(bytes));
      return;
    }
    while (!bytes.empty()) {
      for (v1::Tensor& input : *request.mutable_inputs()) {
        const absl::string_view sample = bytes.substr(0, SampleBytes(input, samples));
        input.mutable_data()->append(sample.data(), sample.size());
        bytes.remove_prefix(sample.size());
      }
    }
  }

  // A copy, because a message's bytes need not be aligned.
  static absl::StatusOr<client::Tensor> TensorOf(const v1::Tensor& input) {
    absl::StatusOr<Shape> shape = Shape::Create(input.shape());
    if (!shape.ok()) return shape.status();
    absl::StatusOr<client::Tensor> tensor =
        client::Tensor::Allocate(DTypeOf(input.dtype()), *std::move(shape));
    if (!tensor.ok()) return tensor;
    if (tensor->bytes().size() != input.data().size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data: ", input.data().size(), " bytes, wanted ", tensor->bytes().size()));
    }
    std::memcpy(tensor->mutable_bytes().data(), input.data().data(), input.data().size());
    return tensor;
  }

  static grpc::Status Compute(const FakeModel& model, const v1::NormalizeRequest& request,
                              bool wrong, v1::NormalizeResponse* response) {
    if (model.compute) {
      for (v1::Tensor& output : model.compute(request))
        *response->add_outputs() = std::move(output);
    } else if (absl::Status status = ComputeReference(model, request, wrong, response);
               !status.ok()) {
      return ToGrpc(status);
    }
    response->set_model(request.model());
    response->set_version(1);
    response->mutable_stages()->set_compute_ns(1000);
    response->mutable_batch()->set_requests(2);
    response->mutable_batch()->set_lane("fake:0");
    return grpc::Status::OK;
  }

  static absl::Status ComputeReference(const FakeModel& model, const v1::NormalizeRequest& request,
                                       bool wrong, v1::NormalizeResponse* response) {
    std::vector<client::NamedTensor> inputs;
    for (const v1::Tensor& input : request.inputs()) {
      absl::StatusOr<client::Tensor> tensor = TensorOf(input);
      if (!tensor.ok()) return tensor.status();
      inputs.push_back(tensor->named(input.name()));
    }
    const absl::StatusOr<std::vector<client::ReferenceOutput>> results =
        model.reference->Compute(inputs);
    if (!results.ok()) return results.status();
    for (const client::ReferenceOutput& result : *results) {
      v1::Tensor* output = response->add_outputs();
      SetSpec(result.spec, output);
      output->mutable_data()->resize(result.elements.size() * norm::SizeOf(result.spec.dtype));
      for (std::size_t i = 0; i < result.elements.size(); ++i) {
        const double value = wrong && i == 0 ? result.elements[i] + 1 : result.elements[i];
        norm::StoreElement(result.spec.dtype, output->mutable_data()->data(),
                           static_cast<std::int64_t>(i), value);
      }
    }
    return absl::OkStatus();
  }

  mutable Mutex mutex_;
  CondVar changed_;
  // Nodes stay until the end, but for those unloaded, which no test does under load.
  std::map<std::string, std::unique_ptr<FakeModel>> models_ ABSL_GUARDED_BY(mutex_);
  std::int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t samples_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t fail_from_ ABSL_GUARDED_BY(mutex_) = kNeverFrom;
  std::int64_t wrong_from_ ABSL_GUARDED_BY(mutex_) = kNeverFrom;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::int64_t hold_from_ ABSL_GUARDED_BY(mutex_) = kNeverFrom;
};

// The same models through the Open Inference Protocol.
class InferService final : public inference::GRPCInferenceService::Service {
 public:
  explicit InferService(v1::NormService::Service& service) : service_(service) {}

  grpc::Status ModelInfer(grpc::ServerContext* context, const inference::ModelInferRequest* request,
                          inference::ModelInferResponse* response) override {
    v1::NormalizeRequest plain;
    plain.set_model(request->model_name());
    for (int i = 0; i < request->inputs_size(); ++i) {
      const auto& input = request->inputs(i);
      v1::Tensor& tensor = *plain.add_inputs();
      tensor.set_name(input.name());
      const DataTypeNames* type = FindDataType(&DataTypeNames::inference, input.datatype());
      if (type == nullptr) return {grpc::StatusCode::INVALID_ARGUMENT, "datatype"};
      tensor.set_dtype(static_cast<v1::DataType>(type->protocol));
      *tensor.mutable_shape() = input.shape();
      tensor.set_data(request->raw_input_contents(i));
    }
    v1::NormalizeResponse answer;
    const grpc::Status status = service_.Normalize(context, &plain, &answer);
    if (!status.ok()) return status;
    response->set_model_name(answer.model());
    response->set_model_version(absl::StrCat(answer.version()));
    for (const v1::Tensor& tensor : answer.outputs()) {
      auto& output = *response->add_outputs();
      output.set_name(tensor.name());
      output.set_datatype(std::string(NamesOf(DTypeOf(tensor.dtype())).inference));
      *output.mutable_shape() = tensor.shape();
      response->add_raw_output_contents(tensor.data());
    }
    return grpc::Status::OK;
  }

 private:
  v1::NormService::Service& service_;
};

}  // namespace

struct FakeNormService::Impl {
  Service service;
  InferService infer_service{service};
  std::string target;
  std::unique_ptr<grpc::Server> server;
};

FakeNormService::FakeNormService(std::shared_ptr<grpc::ServerCredentials> credentials)
    : impl_(std::make_unique<Impl>()) {
  grpc::EnableDefaultHealthCheckService(true);
  if (credentials == nullptr) credentials = grpc::InsecureServerCredentials();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", credentials, &port);
  builder.RegisterService(&impl_->service);
  builder.RegisterService(&impl_->infer_service);
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  impl_->server = builder.BuildAndStart();
  impl_->target = absl::StrCat("127.0.0.1:", port);
}

FakeNormService::~FakeNormService() { Stop(); }

const std::string& FakeNormService::target() const { return impl_->target; }

void FakeNormService::AddModel(const std::string& name, const v1::ModelConfig& config,
                               std::map<std::string, client::Tensor> parameters) {
  v1::ModelInfo info;
  info.set_name(name);
  info.set_version(1);
  info.set_state(v1::ModelInfo::READY);
  *info.mutable_config() = config;
  for (const auto& [parameter, tensor] : parameters) {
    v1::Parameter* told = info.add_parameters();
    told->set_name(parameter);
    told->set_dtype(static_cast<v1::DataType>(tensor.dtype()));
    for (const std::int64_t dim : tensor.shape().dims()) told->add_shape(dim);
  }
  impl_->service.AddModel({std::move(info),
                           client::ReferenceModel::Create(config, ParametersOf(parameters)).value(),
                           nullptr});
}

void FakeNormService::AddModel(const std::string& name, Compute compute) {
  v1::ModelInfo info;
  info.set_name(name);
  info.set_version(1);
  info.set_state(v1::ModelInfo::READY);
  impl_->service.AddModel({std::move(info), std::nullopt, std::move(compute)});
}

void FakeNormService::TellTensors(const std::string& name, const Tensors& inputs,
                                  const Tensors& outputs) {
  impl_->service.TellTensors(name, inputs, outputs);
}

void FakeNormService::TellSamples(std::int64_t samples) { impl_->service.TellSamples(samples); }

void FakeNormService::FailFrom(std::int64_t from, const absl::Status& status) {
  impl_->service.FailFrom(from, status);
}
void FakeNormService::AnswerWronglyFrom(std::int64_t from) {
  impl_->service.AnswerWronglyFrom(from);
}
void FakeNormService::HoldFrom(std::int64_t from) { impl_->service.HoldFrom(from); }
void FakeNormService::Release() { impl_->service.HoldFrom(kNeverFrom); }
void FakeNormService::WaitForCalls(std::int64_t calls) { impl_->service.WaitForCalls(calls); }
std::int64_t FakeNormService::calls() const { return impl_->service.calls(); }

void FakeNormService::SetHealth(const std::string& service, bool serving) {
  impl_->server->GetHealthCheckService()->SetServingStatus(service, serving);
}

void FakeNormService::Stop() {
  if (!impl_->server) return;
  Release();
  impl_->server->Shutdown(std::chrono::system_clock::now());
  impl_->server.reset();
}

}  // namespace normd::test
