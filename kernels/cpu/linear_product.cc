#include "kernels/cpu/linear_product.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <utility>

#include "kernels/cpu/params.h"

// The distributions' oneDNN computes with OpenMP's threads, which are unaware of ours. OpenMP's
// runtime is in the process if oneDNN needs it; these symbols are null otherwise.
extern "C" {
__attribute__((weak)) int omp_get_max_threads(void);
__attribute__((weak)) void omp_set_num_threads(int threads);
}

namespace normd::norm::cpu {
namespace {

using Type = dnnl::memory::data_type;
using Tag = dnnl::memory::format_tag;

// A tile's columns by 64 rows make a good task size.
constexpr std::int64_t kMaxTileColumns = 128;
constexpr std::int64_t kColumnStep = 16;
// From the fastest size to the one that wastes nothing on a single row. A tile's weights for many
// input features exceed a core's cache: the more rows, the less often they are read.
constexpr std::int64_t kBlockRows[] = {256, 64, 32, 16, 8, 4, 2, 1};

std::int64_t RoundUp(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

// Sets the number of threads on which oneDNN computes for this thread, while it lives. With one,
// our threads are its parallelism. The number belongs to the calling thread, so the caller's other
// uses of OpenMP are not touched.
class ThreadCount {
 public:
  explicit ThreadCount(int threads) {
    if (omp_get_max_threads == nullptr || omp_set_num_threads == nullptr) return;
    before_ = omp_get_max_threads();
    if (before_ != threads) omp_set_num_threads(threads);
  }
  ~ThreadCount() {
    if (before_ > 0) omp_set_num_threads(before_);
  }
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_ = 0;
};

// Runs call(), which returns a Status, and converts oneDNN's exceptions.
template <class Call>
Status Guarded(const Call& call, int threads = 1) {
  try {
    const ThreadCount thread_count(threads);
    return call();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "no memory for the weights");
  } catch (const dnnl::error& error) {
    const StatusCode code = error.status == dnnl_out_of_memory   ? StatusCode::kOutOfMemory
                            : error.status == dnnl_unimplemented ? StatusCode::kUnsupported
                                                                 : StatusCode::kDeviceError;
    return Status(code, std::string("oneDNN: ") + error.what());
  }
}

dnnl::memory::desc Matrix(std::int64_t rows, std::int64_t columns, Tag tag) {
  return {{rows, columns}, Type::f32, tag};
}

// An empty `bias` means none.
dnnl::matmul::primitive_desc MatmulDesc(const dnnl::engine& engine, const dnnl::memory::desc& x,
                                        const dnnl::memory::desc& weight,
                                        const dnnl::memory::desc& bias,
                                        const dnnl::memory::desc& z) {
  // With the library's own scratchpad, a primitive could not run on two threads at once.
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul::primitive_desc(engine, x, weight, bias, z, attributes);
#else
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(x, weight, bias, z), attributes, engine);
#endif
}

// The parameters of a tile's columns.
struct Tile {
  dnnl::memory weight;
  dnnl::memory bias;
};

// The product for one block size.
struct Product {
  std::int64_t rows = 0;
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul primitive;
};

}  // namespace

struct LinearProduct::Impl {
  Impl(std::int64_t in_features, std::int64_t out_features)
      : in(in_features),
        out(out_features),
        tiles((out + kMaxTileColumns - 1) / kMaxTileColumns),
        columns(RoundUp((out + tiles - 1) / tiles, kColumnStep)) {}

  Status CreateProducts();
  void Pack(const LinearNormParams& params);
  Tile PackTile(const float* weight_rows, const float* bias) const;
  void KeepWhatAgrees();

  class Multiplier;

  const std::int64_t in;
  const std::int64_t out;
  const std::int64_t tiles;
  const std::int64_t columns;
  const dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  std::vector<Product> products;
  std::vector<std::int64_t> block_rows;
  std::vector<Tile> packed;
};

Status LinearProduct::Impl::CreateProducts() {
  dnnl::memory::desc weight = Matrix(in, columns, Tag::any);
  for (const std::int64_t rows : kBlockRows) {
    Product product{rows,
                    MatmulDesc(engine, Matrix(rows, in, Tag::ab), weight,
                               Matrix(1, columns, Tag::ab), Matrix(rows, columns, Tag::ab)),
                    {}};
    // The first size decides how the weight is packed; the others use that. The reference
    // implementation takes everything, at a thousandth of the speed.
    const bool reference = std::strncmp(product.desc.impl_info_str(), "ref", 3) == 0;
    if (reference && !products.empty()) continue;
    weight = product.desc.weights_desc();
    product.primitive = dnnl::matmul(product.desc);
    products.push_back(std::move(product));
  }
  return Status();
}

// `weight_rows`: columns x in floats; `bias`: columns.
Tile LinearProduct::Impl::PackTile(const float* weight_rows, const float* bias) const {
  Tile tile{dnnl::memory(products.front().desc.weights_desc(), engine),
            dnnl::memory(products.front().desc.bias_desc(), engine)};
  // The transpose of the rows, in place. oneDNN's interface has no const; it only reads.
  dnnl::memory plain(Matrix(in, columns, Tag::ba), engine, const_cast<float*>(weight_rows));
  dnnl::stream stream(engine);
  dnnl::reorder(plain, tile.weight).execute(stream, plain, tile.weight);
  stream.wait();
  std::copy_n(bias, columns, static_cast<float*>(tile.bias.get_data_handle()));
  return tile;
}

// `count` elements of a parameter from `first` on, as floats, then zeros.
void CopyFloats(const ParamVector& param, std::int64_t first, std::int64_t count,
                std::vector<float>* to) {
  if (param.data == nullptr) count = 0;
  if (count > 0) {
    const std::size_t offset = static_cast<std::size_t>(first) * SizeOf(param.dtype);
    Param part({static_cast<const char*>(param.data) + offset, param.dtype}, count);
    std::copy_n(static_cast<const float*>(part.AsAccumulationType(DType::kFloat32)), count,
                to->begin());
  }
  std::fill(to->begin() + count, to->end(), 0.0f);
}

void LinearProduct::Impl::Pack(const LinearNormParams& params) {
  std::vector<float> weight(static_cast<std::size_t>(columns * in));
  std::vector<float> bias(static_cast<std::size_t>(columns));
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t first = tile * columns;
    const std::int64_t count = std::clamp<std::int64_t>(out - first, 0, columns);
    CopyFloats(params.weight, first * in, count * in, &weight);
    CopyFloats(params.bias, first, count, &bias);
    packed.push_back(PackTile(weight.data(), bias.data()));
  }
}

// Runs products one after another.
class LinearProduct::Impl::Multiplier {
 public:
  explicit Multiplier(const Impl& impl) : impl_(impl), stream_(impl.engine) {}

  void Run(const Tile& tile, const float* x, float* z, std::int64_t rows) {
    if (product_ == nullptr || product_->rows != rows) Take(rows);
    x_.set_data_handle(const_cast<float*>(x));
    z_.set_data_handle(z);
    arguments_[DNNL_ARG_WEIGHTS] = tile.weight;
    arguments_[DNNL_ARG_BIAS] = tile.bias;
    product_->primitive.execute(stream_, arguments_);
  }

  void Wait() { stream_.wait(); }

 private:
  void Take(std::int64_t rows) {
    product_ = &*std::find_if(impl_.products.begin(), impl_.products.end(),
                              [=](const Product& product) { return product.rows == rows; });
    const auto& desc = product_->desc;
    x_ = dnnl::memory(desc.src_desc(), impl_.engine, nullptr);
    z_ = dnnl::memory(desc.dst_desc(), impl_.engine, nullptr);
    arguments_[DNNL_ARG_SRC] = x_;
    arguments_[DNNL_ARG_DST] = z_;
    arguments_[DNNL_ARG_SCRATCHPAD] = dnnl::memory(desc.scratchpad_desc(), impl_.engine);
  }

  const Impl& impl_;
  dnnl::stream stream_;
  const Product* product_ = nullptr;
  dnnl::memory x_;
  dnnl::memory z_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

void LinearProduct::Impl::KeepWhatAgrees() {
  // Arbitrary numbers of both signs whose products do not cancel.
  std::uint32_t state = 1;
  const auto next = [&state] {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
  };
  std::vector<float> weight(static_cast<std::size_t>(columns * in));
  for (float& value : weight) value = next();
  const Tile tile = PackTile(weight.data(), weight.data());
  const std::int64_t most = kBlockRows[0];
  std::vector<float> x(static_cast<std::size_t>(most * in));
  for (std::int64_t i = 0; i < in; ++i) x[static_cast<std::size_t>(i)] = next();
  for (std::int64_t row = 1; row < most; ++row) {
    std::copy_n(x.begin(), in, x.begin() + row * in);
  }

  std::vector<float> z(static_cast<std::size_t>(most * columns));
  std::vector<float> wanted;  // The result of the largest size whose own rows agree.
  const std::size_t row_bytes = static_cast<std::size_t>(columns) * sizeof(float);
  std::vector<Product> all = std::move(products);
  products.clear();
  for (Product& product : all) {
    products.push_back(std::move(product));
    const std::int64_t rows = products.back().rows;
    Multiplier multiplier(*this);
    multiplier.Run(tile, x.data(), z.data(), rows);
    multiplier.Wait();
    bool agrees = true;
    for (std::int64_t row = 1; row < rows; ++row) {
      agrees = agrees && std::memcmp(z.data() + row * columns, z.data(), row_bytes) == 0;
    }
    if (agrees && wanted.empty()) wanted.assign(z.begin(), z.begin() + columns);
    agrees = agrees && std::memcmp(wanted.data(), z.data(), row_bytes) == 0;
    if (agrees) {
      block_rows.push_back(rows);
    } else {
      products.pop_back();
    }
  }
}

LinearProduct::LinearProduct(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LinearProduct::~LinearProduct() = default;

Status LinearProduct::Create(std::int64_t in_features, std::int64_t out_features,
                             const LinearNormParams& params, std::unique_ptr<LinearProduct>* out) {
  return Guarded([&] {
    auto impl = std::make_unique<Impl>(in_features, out_features);
    if (Status status = impl->CreateProducts(); !status.ok()) return status;
    impl->KeepWhatAgrees();
    impl->Pack(params);
    *out = std::unique_ptr<LinearProduct>(new LinearProduct(std::move(impl)));
    return Status();
  });
}

const std::vector<std::int64_t>& LinearProduct::block_rows() const { return impl_->block_rows; }
std::int64_t LinearProduct::tiles() const { return impl_->tiles; }
std::int64_t LinearProduct::tile_columns() const { return impl_->columns; }

Status LinearProduct::Multiply(const std::vector<RowBlock>& blocks, std::int64_t begin,
                               std::int64_t end) const {
  return Guarded([&] {
    Impl::Multiplier multiplier(*impl_);
    const auto count = static_cast<std::int64_t>(blocks.size());
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t tile = task / count;
      const RowBlock& block = blocks[static_cast<std::size_t>(task % count)];
      multiplier.Run(impl_->packed[static_cast<std::size_t>(tile)], block.x,
                     block.z + block.rows * tile * impl_->columns, block.rows);
    }
    multiplier.Wait();
    return Status();
  });
}

struct BareProduct::Impl {
  Impl(std::int64_t samples_in, std::int64_t in_features, std::int64_t out_features,
       const float* weight_in)
      : samples(samples_in),
        in(in_features),
        out(out_features),
        weight(weight_in, weight_in + in_features * out_features) {}

  // Runs at the first call, because the primitive is made for a number of threads.
  void Prepare() {
    desc = MatmulDesc(engine, Matrix(samples, in, Tag::ab), Matrix(in, out, Tag::any), {},
                      Matrix(samples, out, Tag::ab));
    primitive = dnnl::matmul(desc);
    dnnl::memory plain(Matrix(in, out, Tag::ba), engine, weight.data());
    packed = dnnl::memory(desc.weights_desc(), engine);
    dnnl::stream stream(engine);
    dnnl::reorder(plain, packed).execute(stream, plain, packed);
    stream.wait();
    scratchpad = dnnl::memory(desc.scratchpad_desc(), engine);
    weight = {};
  }

  const std::int64_t samples;
  const std::int64_t in;
  const std::int64_t out;
  std::vector<float> weight;  // Empty once it is packed.
  const dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul primitive;
  dnnl::memory packed;
  dnnl::memory scratchpad;
};

BareProduct::BareProduct(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
BareProduct::~BareProduct() = default;

Status BareProduct::Create(std::int64_t samples, std::int64_t in_features,
                           std::int64_t out_features, const float* weight,
                           std::unique_ptr<BareProduct>* out) {
  return Guarded([&] {
    auto impl = std::make_unique<Impl>(samples, in_features, out_features, weight);
    *out = std::unique_ptr<BareProduct>(new BareProduct(std::move(impl)));
    return Status();
  });
}

Status BareProduct::Multiply(const float* x, float* z, int threads) {
  return Guarded(
      [&] {
        Impl& impl = *impl_;
        if (!impl.weight.empty()) impl.Prepare();
        dnnl::stream stream(impl.engine);
        const dnnl::memory from(impl.desc.src_desc(), impl.engine, const_cast<float*>(x));
        const dnnl::memory to(impl.desc.dst_desc(), impl.engine, z);
        impl.primitive.execute(stream, {{DNNL_ARG_SRC, from},
                                        {DNNL_ARG_WEIGHTS, impl.packed},
                                        {DNNL_ARG_DST, to},
                                        {DNNL_ARG_SCRATCHPAD, impl.scratchpad}});
        stream.wait();
        return Status();
      },
      threads);
}

}  // namespace normd::norm::cpu
