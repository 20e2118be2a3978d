#include "tests/support/temp_repository.h"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <vector>

#include "client/tensor/random.h"
#include "google/protobuf/text_format.h"
#include "nlohmann/json.hpp"
#include "operations/safetensors.h"

namespace normd::test {

std::vector<Parameter> ParametersOf(const std::map<std::string, client::Tensor>& tensors) {
  std::vector<Parameter> parameters;
  for (const auto& [name, tensor] : tensors) {
    parameters.push_back(
        {name, tensor.dtype(), tensor.shape(),
         std::shared_ptr<const std::byte[]>(tensor.owner(), tensor.bytes().data())});
  }
  return parameters;
}

std::string SafetensorsBytes(const std::map<std::string, client::Tensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();  // Otherwise null, when it stays empty.
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const auto dims = tensor.shape().dims();
    const std::size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.bytes().data()), tensor.bytes().size());
    header[name] = {{"dtype", std::string(SafetensorsName(tensor.dtype()))},
                    {"shape", std::vector<std::int64_t>(dims.begin(), dims.end())},
                    {"data_offsets", {begin, data.size()}}};
  }
  const std::string text = header.dump();
  const std::uint64_t size = text.size();
  std::string bytes(sizeof(size), '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  return bytes + text + data;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteModel(const std::string& root, const std::string& name, const v1::ModelConfig& config,
                const std::map<std::string, client::Tensor>& parameters) {
  const std::filesystem::path folder = std::filesystem::path(root) / name;
  std::filesystem::create_directories(folder / "1");
  std::string text;
  google::protobuf::TextFormat::PrintToString(config, &text);
  WriteFile(folder / "config.textproto", text);
  WriteFile(folder / "1" / "params.safetensors", SafetensorsBytes(parameters));
}

v1::ModelConfig ConfigOf(const std::string& text) {
  v1::ModelConfig config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) throw std::runtime_error(text);
  return config;
}

client::Tensor RandomFloats(const std::vector<std::int64_t>& shape, std::uint64_t seed) {
  return client::RandomTensor(norm::DType::kFloat32, Shape::Create(shape).value(), -1, 1, seed)
      .value();
}

std::map<std::string, client::Tensor> AffineParameters(std::int64_t channels) {
  const Shape shape = Shape::Create({channels}).value();
  return {{"weight", client::RandomTensor(norm::DType::kFloat32, shape, 0.5, 1.5, 1).value()},
          {"bias", client::RandomTensor(norm::DType::kFloat32, shape, -1, 1, 2).value()}};
}

}  // namespace normd::test
