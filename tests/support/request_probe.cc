#include "tests/support/request_probe.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace normd {
namespace {

std::uint64_t NextId() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1);
}

}  // namespace

RequestProbe::RequestProbe(std::shared_ptr<const Model> model,
                           const std::vector<std::int64_t>& dims, norm::DType dtype,
                           std::vector<std::byte> bytes)
    : id_(NextId()),
      end_(std::make_shared<End>()),
      cancelled_(std::make_shared<std::atomic<bool>>(false)),
      request_(std::make_unique<Request>()) {
  const absl::StatusOr<Geometry> geometry = model->Check(dtype, *Shape::Create(dims));
  if (!geometry.ok()) {
    std::fprintf(stderr, "test request: %s\n", geometry.status().ToString().c_str());
    std::abort();
  }
  request_->id = id_;
  request_->model = std::move(model);
  request_->dtype = dtype;
  request_->geometry = *geometry;
  bytes.resize(static_cast<std::size_t>(geometry->inputs[0].bytes));
  auto input = std::make_shared<std::vector<std::byte>>(std::move(bytes));
  request_->inputs.push_back({{ConstBytes(*input)}, {}});
  request_->input_owner = input;
  input_ = input;
  request_->cancelled = cancelled_;
  request_->done = [end = end_](Completion completion) {
    std::function<void()> hook;
    {
      MutexLock lock(end->mutex);
      ++end->calls;
      end->completion = std::move(completion);
      hook = end->hook;
    }
    if (hook) hook();
    end->ended.SignalAll();
  };
}

void RequestProbe::OnDone(std::function<void()> hook) {
  MutexLock lock(end_->mutex);
  end_->hook = std::move(hook);
}

int RequestProbe::done_calls() const {
  MutexLock lock(end_->mutex);
  return end_->calls;
}

void RequestProbe::Wait() const {
  MutexLock lock(end_->mutex);
  while (end_->calls == 0) end_->ended.Wait(end_->mutex);
}

const Completion& RequestProbe::completion() const {
  MutexLock lock(end_->mutex);
  if (end_->calls == 0) {
    std::fprintf(stderr, "test request %llu has not ended\n", static_cast<unsigned long long>(id_));
    std::abort();
  }
  return end_->completion;  // Written once, by now.
}

std::vector<absl::StatusCode> Codes(const std::vector<std::unique_ptr<RequestProbe>>& probes) {
  std::vector<absl::StatusCode> codes;
  codes.reserve(probes.size());
  for (const auto& probe : probes) {
    codes.push_back(probe->done() ? probe->code() : absl::StatusCode::kUnknown);
  }
  return codes;
}

}  // namespace normd
