// A folder for a test, and a model repository in it.

#ifndef NORMD_TESTS_SUPPORT_TEMP_REPOSITORY_H_
#define NORMD_TESTS_SUPPORT_TEMP_REPOSITORY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "client/tensor/tensor.h"
#include "normd/v1/model_config.pb.h"
#include "operations/parameter.h"
#include "tests/support/temp_folder.h"

namespace normd::test {

using testing::TempFolder;

// The tensors as a file's reader gives them; they share the memory.
std::vector<Parameter> ParametersOf(const std::map<std::string, client::Tensor>& tensors);

// The bytes of a safetensors file with these tensors.
std::string SafetensorsBytes(const std::map<std::string, client::Tensor>& tensors);

void WriteFile(const std::string& path, const std::string& bytes);
// The whole file; empty when it does not open.
std::string ReadFile(const std::string& path);

// Writes <root>/<name>/config.textproto and <root>/<name>/1/params.safetensors.
void WriteModel(const std::string& root, const std::string& name, const v1::ModelConfig& config,
                const std::map<std::string, client::Tensor>& parameters);

// The config that a file's text describes.
v1::ModelConfig ConfigOf(const std::string& text);

// Floats from -1 to 1.
client::Tensor RandomFloats(const std::vector<std::int64_t>& shape, std::uint64_t seed = 1);

// weight and bias of `channels` elements, random and not trivial.
std::map<std::string, client::Tensor> AffineParameters(std::int64_t channels);

}  // namespace normd::test

#endif  // NORMD_TESTS_SUPPORT_TEMP_REPOSITORY_H_
