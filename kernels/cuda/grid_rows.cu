// Rows spread over co-resident blocks that meet in global memory (grid_meeting.cuh).
//
// The blocks of a launch form teams of blocks_per_row; a team takes rows, each block the same slice
// of each, cut into the runs of 11 warps; a 12th merges the warps' partials and meets the other
// blocks. A row is in three places in turn: it lands in shared memory (landing.cuh) and is summed
// there; it moves into registers while the row before is stored from them; it is stored. In turn t
// a warp
//   sums its run of row t,
//   waits for the statistics of row t - 1, which the 12th warp has collected in the meantime,
//   scales and stores row t - 1 out of registers, chunk by chunk, moves row t there in its place,
//   and asks for chunks of later rows in the slots that this frees.
// So nobody waits for a meeting unless another block is a turn behind, and loads and stores are
// under way in every phase.
//
// Bytes: each element is read once and written once. Where rows share gamma and beta element by
// element and there is room, a block keeps its slice of both in shared memory; otherwise they come
// from the second cache. Occupancy: one block of 12 warps with all the registers and up to 223 KiB
// of shared memory, of which 132 and 198 KiB hold rows. Determinism: places and merge orders follow
// from the row's length; no atomics touch the sums.
//
// The launch is cooperative, so all its blocks are resident at once and none waits for one that
// cannot start, whatever else runs on the device. The last block to leave zeroes the slots.

#include <cuda_runtime.h>

#include "kernels/cuda/chunk_moments.cuh"
#include "kernels/cuda/dispatch.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/grid_meeting.cuh"
#include "kernels/cuda/grid_params.cuh"
#include "kernels/cuda/landing.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/moments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/shared_barrier.cuh"
#include "kernels/cuda/tickets.cuh"

namespace normd::norm::cuda {
namespace {

constexpr int kThreads = (kGridWarps + 1) * kLanes;
constexpr int kEagerGranules = 12;
constexpr int kMaxChunks = kGridGranules / kChunkGranules;

// How a launch cuts rows and shared memory.
struct GridShape {
  int blocks_per_row;
  int granules;
  int slots;
  int param_bytes;  // Of gamma and beta in shared memory, of each warp; 0 if they are not there.
  // Rows are stored as soon as their scale is known. Otherwise after the next row's partial is
  // published, so that it waits behind nothing that the block stores.
  bool eager;
};

// What the warps of a block tell each other, for even and odd turns.
template <typename A>
struct GridBoard {
  Moments<A> partials[2][kGridWarps];
  RowScale<A> scales[2];
  std::uint64_t summed[2];  // Barriers: all partials of a turn are there,
  std::uint64_t scaled[2];  // its scale and one more row of the queue are.
  RowQueue queue;
};

// A warp's run of one row, in registers. Registers have no index at run time: Take and Put branch
// to the code of one chunk.
class HeldRow {
 public:
  __device__ void Get(int index, Granule (&chunk)[kChunkGranules]) const {
#pragma unroll
    for (int i = 0; i < kChunkGranules; ++i) {
      chunk[i] = granules_[index * kChunkGranules + i];
      Repack(chunk[i]);
    }
  }
  __device__ void Set(int index, const Granule (&chunk)[kChunkGranules]) {
#pragma unroll
    for (int i = 0; i < kChunkGranules; ++i) granules_[index * kChunkGranules + i] = chunk[i];
  }
  __device__ void Take(int index, Granule (&chunk)[kChunkGranules]) const {
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      if (c == index) Get(c, chunk);
    }
  }
  __device__ void Put(int index, const Granule (&chunk)[kChunkGranules]) {
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      if (c == index) Set(c, chunk);
    }
  }

 private:
  Granule granules_[kGridGranules];
};

// One warp's work on rows that are aligned, with parameters of a known kind. Its loops over chunks
// are unrolled, so that chunks overlap.
template <typename T, bool kAligned, typename Params>
class GridWarp {
 public:
  using A = Accumulator<T>;

  __device__ GridWarp(const RowBatch& batch, const LandingPlace& place, const RowQueue& queue,
                      std::uint32_t params)
      : batch_(batch),
        place_(place),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        landing_(batch, place, queue),
        params_(batch, place, params) {
    landing_.Fill(kLookahead - 1);
  }

  // Sums the run of a row, which stays where it landed; every lane gets the result.
  __device__ Moments<A> Sum(std::uint32_t index) {
    const Row row = FindRow(batch_, index);
    next_.y = row.y + place_.begin;
    next_.bytes = landing_.RunOf(row).bytes;
    next_.params = params_.Find(row, next_.bytes);
    const int left = next_.bytes - lane_ * kGranuleBytes;
    ChunkMoments<T, true> moments(batch_.centered);
#pragma unroll
    for (int i = 0; i < kMaxChunks; ++i) {
      if (i * kChunkBytes >= next_.bytes) continue;
      Granule chunk[kChunkGranules];
      Read(landing_.Await(), chunk);
      if (i == 0) moments.Begin(chunk, left);
      moments.Add(chunk, left - i * kChunkBytes);
    }
    return MergeLanes(moments.Result(LaneElements<T>(left)),
                      static_cast<A>(next_.bytes / static_cast<int>(sizeof(T))), kLanes);
  }

  // Before Turn: asks for what it needs of the row that the registers hold.
  __device__ void Prepare() { params_.Load(held_.params, held_.bytes); }

  // Scales and stores the row that the registers hold, if they hold any, and moves the row that was
  // summed there. Asks for rows up to those of turn `known`.
  __device__ void Turn(std::uint32_t, const RowScale<A>& scale, std::uint32_t,
                       std::uint32_t known) {
    params_.Use(scale);
    const int left = held_.bytes - lane_ * kGranuleBytes;
    char* const out = held_.y + lane_ * kGranuleBytes;
#pragma unroll
    for (int i = 0; i < kMaxChunks; ++i) {
      if (i * kChunkBytes < held_.bytes) {
        Granule chunk[kChunkGranules];
        row_.Get(i, chunk);
        params_.Scale(held_.params, i, left, lane_, chunk);
#pragma unroll
        for (int k = 0; k < kChunkGranules; ++k) {
          const int offset = i * kChunkBytes + k * kStepBytes;
          if (offset < left) StoreGranule(out + offset, chunk[k]);
        }
      }
      if (i * kChunkBytes < next_.bytes) {
        Granule chunk[kChunkGranules];
        Read(landing_.Again(), chunk);
        row_.Set(i, chunk);
        landing_.Free(chunk);
        landing_.AskForOne();
      }
    }
    landing_.Fill(known);
    held_ = next_;
    next_.bytes = 0;
  }

 private:
  // The run of a row.
  struct HeldRun {
    char* y = nullptr;
    int bytes = 0;
    typename Params::Place params;
  };

  __device__ void Read(std::uint32_t slot, Granule (&chunk)[kChunkGranules]) const {
#pragma unroll
    for (int i = 0; i < kChunkGranules; ++i) {
      chunk[i] = ReadShared(slot + i * kStepBytes + lane_ * kGranuleBytes);
    }
  }

  const RowBatch& batch_;
  const LandingPlace place_;
  const int lane_;
  Landing<true> landing_;
  Params params_;
  HeldRow row_;
  HeldRun held_;  // In registers.
  HeldRun next_;  // The one that is summed.
};

// One warp's work on any rows. One copy of the code serves every chunk.
template <typename T, bool kAligned>
class GridWarp<T, kAligned, GridAny> {
 public:
  using A = Accumulator<T>;

  __device__ GridWarp(const RowBatch& batch, const LandingPlace& place, const RowQueue& queue,
                      std::uint32_t)
      : batch_(batch),
        place_(place),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        landing_(batch, place, queue) {
    landing_.Fill(kLookahead - 1);
  }

  __device__ Moments<A> Sum(std::uint32_t index) {
    const Run run = landing_.RunOf(FindRow(batch_, index));
    const int left = run.bytes - lane_ * kGranuleBytes;
    const int chunks = run.chunks();
    ChunkMoments<T, kAligned> moments(batch_.centered);
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      Granule chunk[kChunkGranules];
      run.template Read<T>(landing_.Await(), i, lane_, chunk);
      if (i == 0) moments.Begin(chunk, left);
      moments.Add(chunk, left - i * kChunkBytes);
    }
    return MergeLanes(moments.Result(LaneElements<T>(left)),
                      static_cast<A>(run.bytes / static_cast<int>(sizeof(T))), kLanes);
  }

  __device__ void Prepare() {}

  // Row `index` is stored, row `next` moves in; either may be none.
  __device__ void Turn(std::uint32_t index, const RowScale<A>& scale, std::uint32_t next,
                       std::uint32_t known) {
    const Row row = FindRow(batch_, index < batch_.rows ? index : 0);
    const int bytes = index < batch_.rows ? landing_.RunOf(row).bytes : 0;
    Run next_run;
    if (next < batch_.rows) next_run = landing_.RunOf(FindRow(batch_, next));
    const int chunks = max(bytes, next_run.bytes);
#pragma unroll 1
    for (int i = 0; i * kChunkBytes < chunks; ++i) {
      Granule chunk[kChunkGranules];
      row_.Take(i, chunk);
      if (i * kChunkBytes < next_run.bytes) {
        Granule fresh[kChunkGranules];
        next_run.template Read<T>(landing_.Again(), i, lane_, fresh);
        row_.Put(i, fresh);
        landing_.Free(fresh);
        landing_.AskForOne();
      }
      const int left = bytes - i * kChunkBytes;
      if (left <= 0) continue;
      Scale(row, scale, i, left, chunk);
      StoreRun<T, kAligned>(row.y + place_.begin + i * kChunkBytes, left, lane_, kLanes, chunk);
    }
    landing_.Fill(known);
  }

 private:
  using Run = LandingRun<kAligned>;

  // Turns chunk `index` of the run, of which `bytes` exist from its begin on, into results.
  __device__ void Scale(const Row& row, const RowScale<A>& scale, int index, int bytes,
                        Granule (&chunk)[kChunkGranules]) const {
    const std::int64_t element = (place_.begin + index * kChunkBytes) / static_cast<int>(sizeof(T));
    RunEpilogue<T> epilogue(batch_, row, scale, element,
                            element + min(bytes, kChunkBytes) / static_cast<int>(sizeof(T)));
    const std::int64_t first = element + lane_ * kPerGranule<T>;
    if (epilogue.few_channels()) {
      const int of_first = epilogue.GranulesOfFirst(first, kLanes * kPerGranule<T>, kChunkGranules);
      WithActivation(batch_.activation, [&](auto activation) {
#pragma unroll
        for (int i = 0; i < kChunkGranules; ++i) {
          chunk[i] =
              epilogue.template ApplyInChannel<decltype(activation)::value>(chunk[i], i < of_first);
        }
      });
      return;
    }
#pragma unroll
    for (int i = 0; i < kChunkGranules; ++i) {
      chunk[i] = epilogue.Apply(chunk[i], first + i * kLanes * kPerGranule<T>,
                                ElementsPresent<T>(bytes, i * kStepBytes + lane_ * kGranuleBytes));
    }
  }

  const RowBatch& batch_;
  const LandingPlace place_;
  const int lane_;
  Landing<kAligned> landing_;
  HeldRow row_;
};

// The 12th warp's work. In turn t it publishes the block's partial of row t, and hands out the
// scale of row t - 1, upon which the other warps store that row.
template <typename T>
class GridHost {
 public:
  using A = Accumulator<T>;

  __device__ GridHost(const RowBatch& batch, const GridShape& shape, MeetingRoom* room,
                      GridBoard<A>* board)
      : batch_(batch),
        shape_(shape),
        board_(board),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        meeting_(room, shape.blocks_per_row, batch.rows) {}

  __device__ void Run() {
    std::uint32_t row = board_->queue.OfTurn(0), last = batch_.rows;
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
        if (!known && meeting_.Ask(turn - 1)) {
          scale = Finish(last);
          known = true;
        }
        if (known && published && !handed_out) {
          HandOut(turn - 1, scale);
          handed_out = true;
        }
      }
      last = row;
      if (row < batch_.rows) row = board_->queue.OfTurn(turn + 1);
    }
  }

 private:
  __device__ std::uint32_t Summed(std::uint32_t turn) const {
    return SharedAddress(&board_->summed[turn % 2]);
  }
  __device__ BlockShares SharesOf(std::uint32_t row) const {
    return {FindRow(batch_, row).elements,
            std::int64_t{kGridWarps} * shape_.granules * kLanes * kPerGranule<T>};
  }

  __device__ void Publish(std::uint32_t row, std::uint32_t turn) {
    const Moments<A> mine = lane_ < kGridWarps ? board_->partials[turn % 2][lane_] : Moments<A>();
    const int rank = static_cast<int>(blockIdx.x) % shape_.blocks_per_row;
    meeting_.Publish(MergeLanes(mine, SharesOf(row).template Count<A>(rank), kLanes), turn);
  }

  // Of a row that all blocks have published.
  __device__ RowScale<A> Finish(std::uint32_t row) {
    return FinishRow(meeting_.Collect(SharesOf(row), &ahead_), batch_.eps);
  }

  __device__ void HandOut(std::uint32_t turn, const RowScale<A>& scale) {
    if (lane_ == 0) {
      board_->scales[turn % 2] = scale;
      board_->queue.rows[(turn + kLookahead) % 8] = ahead_;
      ArriveAtBarrier(SharedAddress(&board_->scaled[turn % 2]));
    }
    __syncwarp();
  }

  const RowBatch& batch_;
  const GridShape& shape_;
  GridBoard<A>* const board_;
  const int lane_;
  GridMeeting<A> meeting_;
  std::uint32_t ahead_ = 0;  // The row of kLookahead turns later.
};

// The work of the others.
template <typename T, typename Warp>
__device__ void ComputeRows(const RowBatch& batch, int warp, Warp* worker,
                            GridBoard<Accumulator<T>>* board) {
  using A = Accumulator<T>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  std::uint32_t row = board->queue.OfTurn(0),
                last = batch.rows;  // Of this turn and the one before.
  for (std::uint32_t turn = 0; row < batch.rows || last < batch.rows; ++turn) {
    if (last < batch.rows) worker->Prepare();
    if (row < batch.rows) {
      const std::uint32_t side = turn % 2;
      const Moments<A> partial = worker->Sum(row);
      if (lane == 0) {
        board->partials[side][warp] = partial;
        ArriveAtBarrier(SharedAddress(&board->summed[side]));
      }
    }
    RowScale<A> scale;
    if (last < batch.rows) {
      const std::uint32_t before = turn - 1;
      AwaitBarrier(SharedAddress(&board->scaled[before % 2]), before / 2 % 2);
      scale = board->scales[before % 2];
    }
    worker->Turn(last, scale, row, turn + kLookahead - 1);
    last = row;
    if (row < batch.rows) row = board->queue.OfTurn(turn + 1);
  }
}

template <typename T, bool kAligned, typename Params>
__global__ void __launch_bounds__(kThreads, 1)
    GridRows(const __grid_constant__ RowBatch batch, const __grid_constant__ GridShape shape,
             MeetingRoom* room) {
  using A = Accumulator<T>;
  extern __shared__ __align__(128) Granule memory[];
  __shared__ GridBoard<A> board;
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kLanes, 0);
  const std::uint32_t teams = gridDim.x / shape.blocks_per_row;
  const std::uint32_t team = blockIdx.x / shape.blocks_per_row;
  if (threadIdx.x < kLookahead) board.queue.rows[threadIdx.x] = team + threadIdx.x * teams;
  if (threadIdx.x < 2) {
    InitBarrier(SharedAddress(&board.summed[threadIdx.x]), kGridWarps);
    InitBarrier(SharedAddress(&board.scaled[threadIdx.x]), 1);
  }
  __syncthreads();
  if (warp == kGridWarps) {
    GridHost<T>(batch, shape, room, &board).Run();
  } else {
    const int rank = static_cast<int>(blockIdx.x) % shape.blocks_per_row;
    const int run_bytes = shape.granules * kStepBytes;
    constexpr int kSlotBytes = SlotBytes(kAligned);
    const std::uint32_t ring = SharedAddress(memory);
    const std::uint32_t barriers = ring + kGridWarps * shape.slots * kSlotBytes;
    const std::uint32_t params = ring + kGridWarps * shape.slots * (kSlotBytes + kGranuleBytes);
    const LandingPlace place = {std::int64_t{rank * kGridWarps + warp} * run_bytes,
                                run_bytes,
                                shape.slots,
                                static_cast<std::uint32_t>(shape.slots) >> 16,
                                ring + warp * shape.slots * kSlotBytes,
                                barriers + warp * shape.slots * 8};
    GridWarp<T, kAligned, Params> worker(
        batch, place, board.queue, shape.param_bytes == 0 ? 0 : params + warp * shape.param_bytes);
    ComputeRows<T>(batch, warp, &worker, &board);
  }
  LeaveRoom(room, teams * TeamWords<A>(shape.blocks_per_row));
}

template <typename T>
std::uint32_t MostTeams(const Launch& launch) {
  const auto blocks = static_cast<unsigned>(launch.plan.blocks_per_row);
  const unsigned held = static_cast<unsigned>(launch.limits.multiprocessors) / blocks;
  constexpr unsigned kWords = sizeof(MeetingRoom::words) / sizeof(uint4);
  return std::min(held, kWords / TeamWords<Accumulator<T>>(blocks));
}

template <typename T, typename Params>
cudaError_t Enqueue(const Launch& launch, const RowBatch& batch, bool aligned) {
  const Plan& plan = launch.plan;
  const GridMemory memory =
      DivideGridMemory(launch.limits, plan.granules, aligned, Params::RunParamBytes(launch));
  const GridShape shape = {plan.blocks_per_row, plan.granules, memory.slots, memory.param_bytes,
                           plan.blocks_per_row == 1 || plan.granules <= kEagerGranules};
  const std::uint32_t teams = std::min<std::uint32_t>(batch.rows, MostTeams<T>(launch));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(teams * static_cast<unsigned>(plan.blocks_per_row));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = memory.bytes;
  config.stream = launch.stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const auto kernel = aligned ? &GridRows<T, true, Params> : &GridRows<T, false, GridAny>;
  return cudaLaunchKernelEx(&config, kernel, batch, shape,
                            static_cast<MeetingRoom*>(launch.meeting));
}

}  // namespace

cudaError_t PrepareGridRows(const DeviceLimits& limits) {
  return ForEachElementType([&](auto element) {
    using T = typename decltype(element)::Type;
    const cudaError_t error = AllowSharedBytes(&GridRows<T, false, GridAny>, limits);
    if (error != cudaSuccess) return error;
    return ForEachGridKind<T>([&](auto kind) {
      return AllowSharedBytes(&GridRows<T, true, typename decltype(kind)::Type>, limits);
    });
  });
}

Status LaunchGridRows(const Launch& launch) {
  return ForEachRowBatch(
      launch, "grid rows", [&](auto element, auto aligned, const RowBatch& batch) -> cudaError_t {
        using T = typename decltype(element)::Type;
        if constexpr (!decltype(aligned)::value) {
          return Enqueue<T, GridAny>(launch, batch, false);
        } else {
          return WithGridKind<T>(launch, batch, [&](auto kind) {
            return Enqueue<T, typename decltype(kind)::Type>(launch, batch, true);
          });
        }
      });
}

}  // namespace normd::norm::cuda
