#include "kernels/cpu/linear_norm.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/linear_product.h"
#include "kernels/cpu/linear_rows.h"
#include "kernels/cpu/workers.h"

namespace normd::norm::cpu {
namespace {

// The size of z and of the gathered rows of x, for all rows of a panel: they stay in the shared
// cache until the norm has read them, and the weight is read once for each panel.
constexpr std::int64_t kPanelBytes = 16 << 20;
constexpr std::int64_t kMaxPanelRows = 1024;
// Below this many multiplications, waking another thread costs more than it saves.
constexpr std::int64_t kSerialProducts = 2 << 20;
// Blocks of more rows than kMinTaskRows are used if each thread gets this many of their rows.
constexpr std::int64_t kMinTaskRows = 64;
constexpr std::int64_t kTasksPerThread = 4;
// A task of the pass over rows has at least this many elements.
constexpr std::int64_t kRowTaskElements = 16 << 10;
constexpr std::int64_t kRowsTogether = 8;
// The cost of reading the weight for a block, in rows: decides between padding and smaller blocks.
constexpr std::int64_t kBlockOverheadRows = 8;

struct Row {
  const char* x = nullptr;
  const char* y = nullptr;  // Null where the epilogue uses none.
  char* out = nullptr;
  TiledRow z;
};

// Memory of unspecified content that grows and is kept, aligned to a cache line.
class Floats {
 public:
  float* Reserve(std::int64_t count) {
    if (count > size_) {
      data_.reset();
      size_ = 0;
      data_.reset(static_cast<float*>(
          ::operator new(static_cast<std::size_t>(count) * sizeof(float), kAlignment)));
      size_ = count;
    }
    return data_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(float* data) const { ::operator delete(data, kAlignment); }
  };

  std::unique_ptr<float, Free> data_;
  std::int64_t size_ = 0;
};

// The memory of one call of Compute, kept for the next.
struct Workspace {
  std::vector<Row> rows;         // The rows of the panel.
  std::vector<RowBlock> blocks;  // The same rows in blocks.
  // Rows of x in the form that the products read, row by row; rows of blocks that are read in place
  // are left out.
  struct Gathered {
    const void* x = nullptr;  // Null: padding.
    float* to = nullptr;
  };
  std::vector<Gathered> gathered;
  Floats x;
  Floats z;
};

}  // namespace

struct LinearNorm::Impl {
  Impl(const Workers& workers_in, const LinearNormSpec& spec_in)
      : workers(workers_in), spec(spec_in) {}

  class Batch;

  std::unique_ptr<Workspace> TakeWorkspace();
  void ReturnWorkspace(std::unique_ptr<Workspace> workspace);

  const Workers& workers;
  const LinearNormSpec spec;
  std::unique_ptr<LinearProduct> product;

  std::mutex mutex;
  std::vector<std::unique_ptr<Workspace>> workspaces;  // Free ones; guarded by `mutex`.
};

std::unique_ptr<Workspace> LinearNorm::Impl::TakeWorkspace() {
  const std::lock_guard lock(mutex);
  if (workspaces.empty()) return std::make_unique<Workspace>();
  std::unique_ptr<Workspace> workspace = std::move(workspaces.back());
  workspaces.pop_back();
  return workspace;
}

void LinearNorm::Impl::ReturnWorkspace(std::unique_ptr<Workspace> workspace) {
  const std::lock_guard lock(mutex);
  workspaces.push_back(std::move(workspace));
}

// One call of Compute.
class LinearNorm::Impl::Batch {
 public:
  Batch(const Impl& layer, DType dtype, Parallel parallel, Workspace& workspace)
      : layer_(layer),
        product_(*layer.product),
        dtype_(dtype),
        kernels_(LinearRowKernelsFor(dtype)),
        parallel_(parallel),
        workspace_(workspace),
        in_bytes_(layer.spec.in_features * static_cast<std::int64_t>(SizeOf(dtype))),
        out_bytes_(layer.spec.out_features * static_cast<std::int64_t>(SizeOf(dtype))),
        z_columns_(product_.tiles() * product_.tile_columns()) {
    const std::int64_t row_bytes = 4 * (layer.spec.in_features + z_columns_);
    const std::int64_t block = product_.block_rows().front();
    panel_rows_ = std::clamp(kPanelBytes / row_bytes / block * block, block, kMaxPanelRows);
  }

  Status Compute(const LinearNormSegment* segments, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const LinearNormSegment& segment = segments[i];
      for (std::int64_t sample = 0; sample < segment.samples; ++sample) {
        const std::int64_t out = sample * out_bytes_;
        workspace_.rows.push_back(
            {static_cast<const char*>(segment.x) + sample * in_bytes_,
             segment.y == nullptr ? nullptr : static_cast<const char*>(segment.y) + out,
             static_cast<char*>(segment.out) + out,
             {}});
        if (static_cast<std::int64_t>(workspace_.rows.size()) < panel_rows_) continue;
        if (Status status = ComputePanel(); !status.ok()) return status;
      }
    }
    return ComputePanel();
  }

 private:
  // The largest block size of which the panel has enough blocks for all threads.
  std::int64_t LargestBlock() const {
    const auto rows = static_cast<std::int64_t>(workspace_.rows.size());
    for (const std::int64_t size : product_.block_rows()) {
      const std::int64_t tasks = product_.tiles() * (rows / size);
      if (parallel_.threads() == 1 || size <= kMinTaskRows ||
          tasks >= kTasksPerThread * parallel_.threads()) {
        return size;
      }
    }
    return product_.block_rows().back();
  }

  // The size of the next block, when `rows` rows are left.
  std::int64_t NextBlock(std::int64_t rows, std::int64_t largest) const {
    const auto cost = [=](std::int64_t size) {
      if (size > largest) return std::numeric_limits<double>::infinity();
      return static_cast<double>(size + kBlockOverheadRows) /
             static_cast<double>(std::min(size, rows));
    };
    const auto& sizes = product_.block_rows();
    return *std::min_element(sizes.begin(), sizes.end(),
                             [&](std::int64_t a, std::int64_t b) { return cost(a) < cost(b); });
  }

  // Where the block's rows lie in the products' form; null if they do not.
  const float* InPlace(std::int64_t first, std::int64_t rows) const {
    const auto at = [&](std::int64_t row) {
      return workspace_.rows[static_cast<std::size_t>(row)].x;
    };
    if (dtype_ != DType::kFloat32) return nullptr;
    if (first + rows > static_cast<std::int64_t>(workspace_.rows.size())) return nullptr;
    for (std::int64_t row = first + 1; row < first + rows; ++row) {
      if (at(row) != at(row - 1) + in_bytes_) return nullptr;
    }
    return reinterpret_cast<const float*>(at(first));
  }

  // Tells the block's rows, from `first` on, where their z will be.
  void PlaceRows(std::int64_t first, const RowBlock& block) {
    const std::int64_t columns = product_.tile_columns();
    const auto rows = static_cast<std::int64_t>(workspace_.rows.size());
    for (std::int64_t i = 0; i < std::min(block.rows, rows - first); ++i) {
      workspace_.rows[static_cast<std::size_t>(first + i)].z = {
          block.z + i * columns, layer_.spec.out_features, columns, block.rows * columns};
    }
  }

  void MakeBlocks() {
    const auto rows = static_cast<std::int64_t>(workspace_.rows.size());
    const std::int64_t padded = rows + product_.block_rows().front();
    float* z = workspace_.z.Reserve(padded * z_columns_);
    workspace_.blocks.clear();
    workspace_.gathered.clear();
    const std::int64_t largest = LargestBlock();
    std::int64_t block_rows = 0;
    for (std::int64_t first = 0; first < rows; first += block_rows) {
      block_rows = NextBlock(rows - first, largest);
      const float* x = InPlace(first, block_rows);
      workspace_.blocks.push_back({x, z + first * z_columns_, block_rows});
      PlaceRows(first, workspace_.blocks.back());
      if (x != nullptr) continue;
      for (std::int64_t row = first; row < first + block_rows; ++row) {
        const bool padding = row >= rows;
        workspace_.gathered.push_back(
            {padding ? nullptr : workspace_.rows[static_cast<std::size_t>(row)].x, nullptr});
      }
    }
    // Only now is their number known.
    const std::int64_t in = layer_.spec.in_features;
    float* to = workspace_.x.Reserve(static_cast<std::int64_t>(workspace_.gathered.size()) * in);
    std::size_t next = 0;
    for (RowBlock& block : workspace_.blocks) {
      if (block.x != nullptr) continue;
      block.x = to;
      for (std::int64_t row = 0; row < block.rows; ++row, to += in) {
        workspace_.gathered[next++].to = to;
      }
    }
  }

  void Gather() {
    const std::int64_t in = layer_.spec.in_features;
    parallel_.For(static_cast<std::int64_t>(workspace_.gathered.size()),
                  std::max<std::int64_t>(1, kRowTaskElements / in),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t i = begin; i < end; ++i) {
                      const Workspace::Gathered& row =
                          workspace_.gathered[static_cast<std::size_t>(i)];
                      if (row.x != nullptr) {
                        kernels_.widen(row.x, in, row.to);
                      } else {
                        std::fill_n(row.to, in, 0.0f);
                      }
                    }
                  });
  }

  // Tile by tile, so that a tile's weights stay in a core's cache for all blocks.
  Status Multiply() {
    const auto blocks = static_cast<std::int64_t>(workspace_.blocks.size());
    std::mutex error_mutex;
    Status first_error;
    parallel_.For(product_.tiles() * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      Status status = product_.Multiply(workspace_.blocks, begin, end);
      if (status.ok()) return;
      const std::lock_guard lock(error_mutex);
      if (first_error.ok()) first_error = std::move(status);
    });
    return first_error;
  }

  void Finish() {
    const auto rows = static_cast<std::int64_t>(workspace_.rows.size());
    const std::int64_t grain =
        std::max<std::int64_t>(1, kRowTaskElements / layer_.spec.out_features);
    parallel_.For(rows, grain, [&](std::int64_t begin, std::int64_t end) {
      for (; begin < end; begin += kRowsTogether) {
        FinishRows(workspace_.rows.data() + begin, std::min(kRowsTogether, end - begin));
      }
    });
  }

  // The statistics come first: one row's divisions and root overlap with the next one's sums.
  void FinishRows(const Row* rows, std::int64_t count) const {
    RowStatistics statistics[kRowsTogether];
    for (std::int64_t i = 0; i < count; ++i) {
      statistics[i] = cpu::Finish(kernels_.moments(rows[i].z), layer_.spec.eps);
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const Row& row = rows[i];
      kernels_.finish(row.z, statistics[i], layer_.spec.epilogue, row.y, row.out);
    }
  }

  Status ComputePanel() {
    if (workspace_.rows.empty()) return Status();
    MakeBlocks();
    Gather();
    Status status = Multiply();
    if (status.ok()) Finish();
    workspace_.rows.clear();
    return status;
  }

  const Impl& layer_;
  const LinearProduct& product_;
  const DType dtype_;
  const LinearRowKernels& kernels_;
  const Parallel parallel_;
  Workspace& workspace_;
  const std::int64_t in_bytes_;
  const std::int64_t out_bytes_;
  const std::int64_t z_columns_;
  std::int64_t panel_rows_ = 0;
};

LinearNorm::LinearNorm(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LinearNorm::~LinearNorm() = default;

Status LinearNorm::Create(const Executor& executor, const LinearNormSpec& spec,
                          const LinearNormParams& params, std::unique_ptr<LinearNorm>* out) {
  if (Status status = ValidateLinearNorm(spec, params); !status.ok()) return status;
  try {
    auto impl = std::make_unique<Impl>(*executor.workers_, spec);
    Status status =
        LinearProduct::Create(spec.in_features, spec.out_features, params, &impl->product);
    if (!status.ok()) return status;
    *out = std::unique_ptr<LinearNorm>(new LinearNorm(std::move(impl)));
    return Status();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "no memory for the weights");
  }
}

Status LinearNorm::Compute(DType dtype, const LinearNormSegment* segments,
                           std::size_t count) const {
  LinearNormSpec spec = impl_->spec;
  spec.dtype = dtype;
  if (!IsLinearNormDType(dtype)) {
    return InvalidArgument(std::string("dtype: ") + Name(dtype) +
                           ", wanted float32, float16 or bfloat16");
  }
  if (Status status = ValidateLinearNormSegments(spec, segments, count); !status.ok()) {
    return status;
  }
  double products = 0;  // A sum of 63-bit sizes.
  for (std::size_t i = 0; i < count; ++i) {
    products += static_cast<double>(segments[i].samples) * static_cast<double>(spec.in_features) *
                static_cast<double>(spec.out_features);
  }
  try {
    const Workers& workers = impl_->workers;
    const bool serial = workers.threads == 1 || products <= static_cast<double>(kSerialProducts);
    std::unique_ptr<Workspace> workspace = impl_->TakeWorkspace();
    Impl::Batch batch(*impl_, dtype, Parallel(serial ? 1 : workers.threads), *workspace);
    Status status;
    const auto run = [&] { status = batch.Compute(segments, count); };
    if (serial) {
      run();
    } else {
      workers.arena.execute(run);
    }
    if (status.ok()) impl_->ReturnWorkspace(std::move(workspace));
    return status;
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "no memory for the workspace of a batch");
  } catch (const std::exception& error) {
    return Status(StatusCode::kOutOfMemory, std::string("task scheduler: ") + error.what());
  }
}

}  // namespace normd::norm::cpu
