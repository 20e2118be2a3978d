// Rows in the shared memory of persistent blocks, a team of a block's warps to each row: rows of 1
// KiB to 64 KiB.
//
// Phases: a team of 1 to 16 warps takes turns (ring.cuh): row i - 1 is scaled and stored, row i + 2
// is asked for in its place, and row i is summed. Lanes merge their sums by shuffles; in a team of
// several warps each writes its partial to shared memory, and after one barrier of the team's own
// every warp merges all partials for itself.
// Bytes: each element is read once and written once; gamma and beta once per block where registers
// hold them, else from the caches.
// Occupancy: one block of 16 warps with up to 193 KiB of shared memory, so that 64 to 128 KiB of
// loads are under way in each. Teams share no rhythm, and take rows by tickets (tickets.cuh).
// Determinism: places and merge orders follow from the row's length; no atomics touch the sums.

#include <cuda_runtime.h>

#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/tickets.cuh"

namespace normd::norm::cuda {
namespace {

struct TeamShape {
  int warps;  // Of a team.
  int granules;
  std::uint32_t rows_per_ticket;
  bool tickets;  // There are more rows than the teams' own first tickets hand out.
};

// The rows of a team, in order. A ticket is a run of consecutive rows. The first kOwnTickets follow
// from the team's number; the others are fetched, each two turns or more before it can be wanted,
// because a fetch takes about as long as a turn when the memory is busy.
class RowQueue {
 public:
  static constexpr std::uint32_t kOwnTickets = 4;

  __device__ RowQueue(std::uint32_t team, std::uint32_t teams, std::uint32_t rows_per_ticket)
      : teams_(teams), rows_per_ticket_(rows_per_ticket), ticket_(team), next_own_(team + teams) {}

  __device__ std::uint32_t row() const { return ticket_ * rows_per_ticket_ + row_; }
  // Whether a fetch should begin in this turn.
  __device__ bool WantsTicket() const { return known_ < current_ + 3; }
  __device__ void BeginFetch() { ++known_; }
  // Hands over what the fetch that began first yielded.
  __device__ void EndFetch(unsigned fetched) {
    const std::uint32_t ticket = kOwnTickets * teams_ + fetched;
    if (waiting_++ == 0) {
      next_ = ticket;
    } else {
      after_next_ = ticket;
    }
  }
  __device__ void Advance() {
    if (++row_ < rows_per_ticket_) return;
    row_ = 0;
    if (++current_ < kOwnTickets) {
      ticket_ = next_own_;
      next_own_ += teams_;
    } else {
      ticket_ = next_;
      next_ = after_next_;
      --waiting_;
    }
  }

 private:
  const std::uint32_t teams_;
  const std::uint32_t rows_per_ticket_;
  std::uint32_t ticket_;
  std::uint32_t next_own_;
  std::uint32_t next_ = 0;
  std::uint32_t after_next_ = 0;
  std::uint32_t row_ = 0;
  std::uint32_t current_ = 0;          // The ticket's place in the order.
  std::uint32_t known_ = kOwnTickets;  // Tickets that are own, fetched or being fetched.
  int waiting_ = 0;                    // Fetched tickets that are not begun.
};

// What the warps of a block's teams tell each other, for even and odd turns.
template <typename A>
struct TeamBoard {
  Moments<A> partials[2][kRingWarps];
  unsigned tickets[2][kRingWarps];
};

// A team's own barrier; barrier 0 is __syncthreads.
__device__ inline void TeamSync(int team, int warps) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(warps * kLanes) : "memory");
}

template <typename T, bool kAligned, bool kRegisterParams>
__global__ void __launch_bounds__(kRingWarps* kLanes, 1)
    BlockRows(const __grid_constant__ RowBatch batch, const TeamShape shape, MeetingRoom* room) {
  using A = Accumulator<T>;
  constexpr int kParamGranules = kRegisterParams ? BlockParamGranules(sizeof(T)) : 0;
  extern __shared__ Granule ring[];
  __shared__ TeamBoard<A> board;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int block_team = warp / shape.warps;
  const int member = warp % shape.warps;
  const std::uint32_t teams = gridDim.x * (blockDim.x / kLanes / shape.warps);
  // Neighbouring rows to different blocks: few rows spread over all multiprocessors.
  RowQueue queue(block_team * gridDim.x + blockIdx.x, teams, shape.rows_per_ticket);

  const RingWarp<T, kAligned, kParamGranules> worker(
      batch, {static_cast<std::int64_t>(member) * shape.granules * kLanes * kGranuleBytes,
              ring + warp * kRingStages * RingStageGranules(shape.granules), shape.granules});
  const std::uint32_t first = queue.row();
  worker.AskFirst(first, 0);
  queue.Advance();
  std::uint32_t coming = queue.row();
  worker.AskFirst(coming, 1);
  queue.Advance();
  RowScale<A> scale;
  std::uint32_t row = first;          // To be summed in this turn.
  std::uint32_t summed = batch.rows;  // In the last.
  int stage = 0;
  int last_stage = kRingStages - 1;
  unsigned fetched = 0;
  bool fetching = false;
  for (int parity = 0; row < batch.rows || summed < batch.rows; parity ^= 1) {
    unsigned ticket = fetched;
    const bool fetch_ends = fetching;
    fetching = shape.tickets && queue.WantsTicket();
    if (fetching) {
      queue.BeginFetch();
      if (member == 0 && worker.lane() == 0) fetched = atomicAdd(&room->next_ticket, 1);
    }
    const std::uint32_t asked = queue.row();
    worker.ScaleAndAsk(summed, scale, asked, last_stage);
    Moments<A> moments = worker.template AwaitAndSum<2>(row, stage);
    if (shape.warps == 1) {
      ticket = __shfl_sync(kAllLanes, ticket, 0);
    } else {
      Moments<A>* const partials = &board.partials[parity][block_team * shape.warps];
      if (worker.lane() == 0) {
        partials[member] = moments;
        if (member == 0) board.tickets[parity][block_team] = ticket;
      }
      TeamSync(block_team, shape.warps);
      ticket = board.tickets[parity][block_team];
      const Moments<A> mine = worker.lane() < shape.warps ? partials[worker.lane()] : Moments<A>();
      moments = MergeLanes(mine, GroupSum(mine.count, kLanes), kLanes);
    }
    if (fetch_ends) queue.EndFetch(ticket);
    if (moments.count > 0) scale = FinishRow(moments, batch.eps);
    queue.Advance();
    summed = row;
    row = coming;
    coming = asked;
    last_stage = stage;
    stage = stage == kRingStages - 1 ? 0 : stage + 1;
  }
  if (shape.tickets) LeaveRoom(room, 0);
}

template <typename T, bool kAligned>
cudaError_t Enqueue(const Launch& launch, const RowBatch& batch) {
  constexpr std::uint32_t kTicketGranules = 16;  // Of a lane.
  const Plan& plan = launch.plan;
  const auto kernel =
      KeepsParams(launch) ? &BlockRows<T, kAligned, true> : &BlockRows<T, kAligned, false>;
  const int block_teams = kRingWarps / plan.warps;
  const auto blocks = std::min<std::uint32_t>(batch.rows, launch.limits.multiprocessors);
  TeamShape shape = {plan.warps, plan.granules, 1, false};
  // A ticket is to last several turns of a warp, and each team to get several tickets.
  while (shape.rows_per_ticket * plan.granules < kTicketGranules &&
         shape.rows_per_ticket * 16 * block_teams * blocks < batch.rows) {
    shape.rows_per_ticket *= 2;
  }
  shape.tickets = batch.rows > RowQueue::kOwnTickets * shape.rows_per_ticket * block_teams * blocks;
  const int threads = block_teams * plan.warps * kLanes;
  kernel<<<blocks, threads, plan.shared_bytes, launch.stream>>>(
      batch, shape, static_cast<MeetingRoom*>(launch.meeting));
  return cudaGetLastError();
}

}  // namespace

cudaError_t PrepareBlockRows(const DeviceLimits& limits) {
  return ForEachElementType([&](auto element) {
    using T = typename decltype(element)::Type;
    for (const auto kernel : {&BlockRows<T, true, true>, &BlockRows<T, true, false>,
                              &BlockRows<T, false, true>, &BlockRows<T, false, false>}) {
      const cudaError_t error = AllowSharedBytes(kernel, limits);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

Status LaunchBlockRows(const Launch& launch) {
  return ForEachRowBatch(launch, "block rows", [&](auto element, auto aligned, const auto& batch) {
    return Enqueue<typename decltype(element)::Type, decltype(aligned)::value>(launch, batch);
  });
}

}  // namespace normd::norm::cuda
