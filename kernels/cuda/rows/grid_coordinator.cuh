// The coordinator warp of a block of the grid kernels: it holds no rows and exchanges partials with
// the other blocks.

#ifndef NORMD_KERNELS_CUDA_ROWS_GRID_COORDINATOR_CUH_
#define NORMD_KERNELS_CUDA_ROWS_GRID_COORDINATOR_CUH_

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/moments.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/row_batch.cuh"
#include "kernels/cuda/rows/grid_exchange.cuh"
#include "kernels/cuda/rows/grid_shared.cuh"
#include "kernels/cuda/rows/row_plan.h"
#include "kernels/cuda/rows/work_counter.cuh"

namespace normd::norm::cuda {

// In turn t it publishes the block's partial of row t and hands out the scale of row t - 1, so that
// the other warps can store that row.
template <typename T, RowSums kSums>
class GridCoordinator {
 public:
  using A = Accumulator<T>;

  __device__ GridCoordinator(const RowBatch& batch, const GridShape& shape, ExchangeArea* area,
                             GridShared<A>* shared)
      : batch_(batch),
        shape_(shape),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        exchange_(area, shape.blocks_per_row, batch.rows) {}

  __device__ void Run() {
    std::uint32_t row = shared_->queue.OfTurn(0), last = batch_.rows;
    for (std::uint32_t turn = 0; row < batch_.rows || last < batch_.rows; ++turn) {
      bool published = row >= batch_.rows, handed_out = last >= batch_.rows, known = handed_out;
      RowScale<A> scale;
      while (!published || !handed_out) {
        if (!published && (known || HasBarrierPassed(Summed(turn), turn / 2 % 2))) {
          if (known && !handed_out && shape_.eager) {
            HandOut(turn - 1, scale);
            handed_out = true;
          }
          AwaitBarrier(Summed(turn), turn / 2 % 2);
          Publish(row, turn);
          published = true;
        }
        if (!known && exchange_.Ask(turn - 1)) {
          scale = Finish(last);
          known = true;
        }
        if (known && published && !handed_out) {
          HandOut(turn - 1, scale);
          handed_out = true;
        }
      }
      last = row;
      if (row < batch_.rows) row = shared_->queue.OfTurn(turn + 1);
    }
  }

 private:
  __device__ std::uint32_t Summed(std::uint32_t turn) const {
    return SharedAddress(&shared_->summed[turn % 2]);
  }
  __device__ BlockShares SharesOf(std::uint32_t row) const {
    return {FindRow(batch_, row).elements,
            std::int64_t{kGridWarps} * shape_.vectors * kLanes * kPerVector<T>};
  }

  __device__ void Publish(std::uint32_t row, std::uint32_t turn) {
    const Moments<A> mine = lane_ < kGridWarps ? shared_->partials[turn % 2][lane_] : Moments<A>();
    const int rank = static_cast<int>(blockIdx.x) % shape_.blocks_per_row;
    exchange_.Publish(MergeStatistics(StatisticsOf<kSums>(batch_), mine,
                                      SharesOf(row).template Count<A>(rank), kLanes),
                      turn);
  }

  // Computes the scale of a row that all blocks have published.
  __device__ RowScale<A> Finish(std::uint32_t row) {
    const auto statistics = StatisticsOf<kSums>(batch_);
    const RowScale<A> scale = FinishStatistics(
        statistics, exchange_.Collect(SharesOf(row), statistics, &ahead_), batch_.eps);
    const bool first = static_cast<int>(blockIdx.x) % shape_.blocks_per_row == 0;
    if (first && lane_ == 0) WriteStatistics(batch_, row, scale);
    return scale;
  }

  __device__ void HandOut(std::uint32_t turn, const RowScale<A>& scale) {
    if (lane_ == 0) {
      shared_->scales[turn % 2] = scale;
      shared_->queue.rows[(turn + kLookahead) % 8] = ahead_;
    }
    ArriveAtBarrier(SharedAddress(&shared_->scaled[turn % 2]));
  }

  const RowBatch& batch_;
  const GridShape& shape_;
  GridShared<A>* const shared_;
  const int lane_;
  GridExchange<A> exchange_;
  std::uint32_t ahead_ = 0;  // The row that is kLookahead turns later.
};

}  // namespace normd::norm::cuda

#endif  // NORMD_KERNELS_CUDA_ROWS_GRID_COORDINATOR_CUH_
