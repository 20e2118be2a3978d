#include "tests/support/golden.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace normd::norm::testing {
namespace {

DType ParseDType(const std::string& name) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    if (name == Name(dtype)) return dtype;
  }
  throw std::runtime_error("golden.txt: unknown dtype " + name);
}

void ReadTensor(std::istringstream& line, const std::string& blob, Golden* golden) {
  std::string name;
  std::string dtype;
  std::int64_t count = 0;
  std::size_t offset = 0;
  line >> name >> dtype >> count >> offset;
  Tensor tensor(ParseDType(dtype), count);
  if (offset + tensor.bytes() > blob.size()) {
    throw std::runtime_error("golden.bin: too short for " + name);
  }
  std::memcpy(tensor.data(), blob.data() + offset, tensor.bytes());
  golden->tensors.emplace(name, std::move(tensor));
}

// 24 uniform bits for each index.
double Hashed(std::uint64_t index, std::uint64_t stream) {
  std::uint64_t v = (index * 8 + stream) * 0x9E3779B97F4A7C15u;
  v ^= v >> 32;
  v *= 0xD6E8FEB86659FD93u;
  return static_cast<double>(v >> 40);
}

}  // namespace

Golden ReadGolden(const std::string& folder) {
  std::ifstream binary(folder + "/golden.bin", std::ios::binary);
  std::ifstream text(folder + "/golden.txt");
  if (!binary || !text) throw std::runtime_error("no golden vectors in " + folder);
  const std::string blob((std::istreambuf_iterator<char>(binary)),
                         std::istreambuf_iterator<char>());
  Golden golden;
  for (std::string record; std::getline(text, record);) {
    std::istringstream line(record);
    std::string kind;
    line >> kind;
    if (kind == "#") continue;
    if (kind == "tensor") {
      ReadTensor(line, blob, &golden);
    } else if (kind == "case") {
      GoldenCase c;
      line >> c.name >> c.op >> c.activation >> c.inputs >> c.samples >> c.channels >> c.groups >>
          c.spatial;
      golden.cases.push_back(c);
    } else if (kind == "error") {
      GoldenError e;
      line >> e.op >> e.data >> e.rows >> e.length >> e.max >> e.rms;
      golden.errors.push_back(e);
    }
    if (line.fail()) throw std::runtime_error("golden.txt: cannot read: " + record);
  }
  return golden;
}

NormSpec GoldenSpec(const std::string& op, std::int64_t channels, std::int64_t groups,
                    DType dtype) {
  NormSpec spec;
  if (op == "instance_norm") {
    spec = InstanceNormSpec(channels, dtype);
  } else if (op == "instance_norm_given") {
    spec = InstanceNormSpec(channels, dtype);
    spec.statistics = Statistics::kGiven;
  } else if (op == "group_norm") {
    spec = GroupNormSpec(channels, groups, dtype);
  } else if (op == "layer_norm") {
    spec = LayerNormSpec(channels, dtype);
  } else if (op == "rms_norm") {
    spec = RmsNormSpec(channels, dtype);
  } else if (op == "batch_norm") {
    spec = BatchNormSpec(channels, dtype);
  } else {
    throw std::runtime_error("golden.txt: unknown op " + op);
  }
  return spec;
}

Tensor MakeGoldenData(const std::string& data, std::int64_t rows, std::int64_t length) {
  Tensor x(DType::kFloat32, rows * length);
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const std::uint64_t index = static_cast<std::uint64_t>(i);
    double sum = 0;
    for (std::uint64_t stream = 0; stream < 4; ++stream) sum += Hashed(index, stream);
    const double normal = (sum / 16777216 - 2) * std::sqrt(3.0);
    double value = normal;
    if (data == "uniform") {
      value = Hashed(index, 0) / 16777216;
    } else if (data == "large_mean") {
      value = 1e4 + normal;
    } else if (data == "constant") {
      value = 3.3;
    } else if (data == "outlier") {
      if (i == length / 3) value = 1e6;
    } else if (data == "front") {
      value = i % length < 100 ? 5 + normal : 0.7;
    } else if (data != "normal") {
      throw std::runtime_error("golden.txt: unknown data " + data);
    }
    x.Set(i, value);
  }
  return x;
}

}  // namespace normd::norm::testing
