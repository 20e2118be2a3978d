#include "server/exec/cpu_program.h"

#include <new>
#include <utility>

#include "server/batching/request.h"
#include "server/exec/gather.h"

namespace normd {

void CpuRun::Begin(const BackendState& state, norm::DType dtype) {
  status_ = absl::OkStatus();
  compute_time_ = Duration(0);
  Start(state, dtype);
}

void CpuRun::Compute() {
  const TimePoint start = resources_.clock.Now();
  try {
    if (status_.ok()) status_ = Launch();
  } catch (const std::bad_alloc&) {
    status_ = NoMemory();
  }
  Forget();
  computed_ = resources_.clock.Now();
  compute_time_ += computed_ - start;
}

void CpuRun::Abandon(const absl::Status& status) {
  status_ = status;
  Forget();
}

absl::StatusOr<const std::byte*> CpuRun::InOnePiece(CpuItem& item, std::size_t index,
                                                    std::byte* spare, bool& in_place) const {
  const Request& request = *item.request;
  if (const std::byte* there = InPlaceInput(request, index); there != nullptr) {
    in_place = true;
    return there;
  }
  const std::int64_t bytes = request.geometry.inputs[index].bytes;
  if (bytes == 0) return nullptr;
  if (spare == nullptr) {
    absl::StatusOr<Buffer> taken = resources_.pool.Take(bytes);
    if (!taken.ok()) return taken.status();
    spare = item.gathered.emplace_back(*std::move(taken)).data();
  }
  GatherInput(request, index, spare);
  return spare;
}

}  // namespace normd
