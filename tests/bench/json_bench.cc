// HTTP's JSON: the text of a MiB of elements, read and written, in bytes of text a second.
//
//   json_bench --benchmark_filter=FP32

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "wire/data_type.h"
#include "wire/infer_json_request.h"
#include "wire/infer_json_response.h"

namespace normd {
namespace {

absl::Status TakeAll(std::int64_t) { return absl::OkStatus(); }

// A MiB of normally distributed elements; halves and integers have any bits but NaN's and
// infinity's.
std::vector<std::byte> Elements(norm::DType dtype) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  std::vector<std::byte> bytes(std::size_t{1} << 20);
  const auto fill = [&](auto draw) {
    using T = decltype(draw());
    T* elements = reinterpret_cast<T*>(bytes.data());
    for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) elements[i] = draw();
  };
  switch (dtype) {
    case norm::DType::kFloat32: fill([&] { return static_cast<float>(normal(random)); }); break;
    case norm::DType::kFloat64: fill([&] { return normal(random); }); break;
    case norm::DType::kFloat16:
      fill([&] { return static_cast<std::uint16_t>(random() & 0xbbff); });
      break;
    case norm::DType::kBFloat16:
      fill([&] { return static_cast<std::uint16_t>(random() & 0xbfff); });
      break;
    default: fill([&] { return random(); }); break;
  }
  return bytes;
}

std::string Encode(norm::DType dtype, const std::vector<std::byte>& elements) {
  const std::int64_t shape[] = {static_cast<std::int64_t>(elements.size() / norm::SizeOf(dtype))};
  const InferJsonOutput output{.name = "x", .dtype = dtype, .shape = shape, .data = elements};
  auto text = EncodeInferJson({.model = "m", .version = "1", .outputs = {&output, 1}}, TakeAll);
  if (text.ok()) return *std::move(text);
  std::fprintf(stderr, "%s\n", text.status().ToString().c_str());
  std::abort();
}

void Write(benchmark::State& state, norm::DType dtype) {
  const std::vector<std::byte> elements = Elements(dtype);
  std::int64_t bytes = 0;
  for (auto unused : state) bytes += static_cast<std::int64_t>(Encode(dtype, elements).size());
  state.SetBytesProcessed(bytes);
}

void Read(benchmark::State& state, norm::DType dtype) {
  std::string text = Encode(dtype, Elements(dtype));
  text = absl::StrCat("{\"inputs\"", text.substr(text.find("\"outputs\"") + 9));
  const std::size_t size = text.size();
  text.resize(size + kJsonPadding);
  const ConstBytes bytes(reinterpret_cast<const std::byte*>(text.data()), size);
  for (auto unused : state) {
    const auto request = DecodeInferJson({bytes, {}}, TakeAll);
    if (!request.ok()) {
      state.SkipWithError(request.status().ToString().c_str());
      return;
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(size));
}

}  // namespace
}  // namespace normd

int main(int argc, char** argv) {
  for (const normd::DataTypeNames& type : normd::kDataTypes) {
    if (type.dtype == normd::norm::DType::kInt8) continue;
    if (type.dtype == normd::norm::DType::kFloat8E4M3) continue;
    const std::string name(type.inference);
    benchmark::RegisterBenchmark(("Read/" + name).c_str(), normd::Read, type.dtype);
    benchmark::RegisterBenchmark(("Write/" + name).c_str(), normd::Write, type.dtype);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
