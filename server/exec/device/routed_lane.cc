#include "server/exec/device/routed_lane.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/retry_after.h"

namespace normd {
namespace {

// The device whose memory the request names; -1: none. A request names only one device.
int DeviceOf(const Request& request) {
  for (const InputMemory& input : request.inputs) {
    if (!input.place.OnHost()) return input.place.device;
  }
  for (const OutputMemory& output : request.outputs) {
    if (!output.place.OnHost()) return output.place.device;
  }
  return -1;
}

std::unique_ptr<Batch> BatchLike(const Batch& batch) {
  auto part = std::make_unique<Batch>();
  part->id = batch.id;
  part->model = batch.model;
  part->dtype = batch.dtype;
  part->taken = batch.taken;
  return part;
}

}  // namespace

LanePool::LanePool(std::vector<std::unique_ptr<Lane>> lanes)
    : lanes_(std::move(lanes)), working_(lanes_.size()) {
  for (const std::unique_ptr<Lane>& lane : lanes_) free_.push_back(lane.get());
}

void LanePool::Execute(std::unique_ptr<Batch> batch) {
  Lane* lane = nullptr;
  {
    MutexLock lock(mutex_);
    while (free_.empty() && working_ > 0) freed_.Wait(mutex_);
    if (working_ > 0) {
      lane = free_.back();
      free_.pop_back();
    }
  }
  if (lane == nullptr) {
    absl::Status status = absl::InternalError("the device of the tensors is no longer usable");
    SetRetryAfter(Duration(0), status);
    for (std::unique_ptr<Request>& request : batch->requests) Fail(std::move(request), status);
    return;
  }
  absl::Status status;
  try {
    status = lane->Execute(std::move(batch));
  } catch (const std::bad_alloc&) {
    // The requests have ended with their batch.
  }
  bool last = false;
  {
    MutexLock lock(mutex_);
    if (status.ok()) {
      free_.push_back(lane);
    } else {
      last = --working_ == 0;
    }
  }
  last ? freed_.SignalAll() : freed_.SignalOne();
}

RoutedLane::RoutedLane(std::unique_ptr<Lane> own, const LanePools& pools)
    : own_(std::move(own)), pools_(pools) {
  own_->OnLargeBatch([this] { LargeBatch(); });
}

absl::Status RoutedLane::Execute(std::unique_ptr<Batch> batch) {
  std::map<int, std::unique_ptr<Batch>> elsewhere;
  for (std::unique_ptr<Request>& request : batch->requests) {
    const int device = DeviceOf(*request);
    if (device < 0 || device == access().device || !pools_.contains(device)) continue;
    std::unique_ptr<Batch>& part = elsewhere[device];
    if (part == nullptr) part = BatchLike(*batch);
    part->bytes += request->geometry.LargerBytes();
    batch->bytes -= request->geometry.LargerBytes();
    part->requests.push_back(std::move(request));
  }
  if (elsewhere.empty()) return own_->Execute(std::move(batch));
  // Another lane of this device may take work meanwhile.
  LargeBatch();
  auto& here = batch->requests;
  here.erase(std::remove(here.begin(), here.end(), nullptr), here.end());
  for (auto& [device, part] : elsewhere) pools_.at(device)->Execute(std::move(part));
  return batch->requests.empty() ? absl::OkStatus() : own_->Execute(std::move(batch));
}

}  // namespace normd
