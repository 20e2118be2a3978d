// The signature of every operation, which tells clients what it takes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/norm.h"
#include "operations/operation.h"
#include "operations/operations.h"
#include "tests/server/model/operation_cases.h"

namespace normd {
namespace {

using norm::DType;

using Dims = std::vector<std::int64_t>;

// What stands for the variable dimensions of a request's patterns; one of each kind at most.
struct Variables {
  std::map<std::size_t, std::int64_t> sizes;  // By their place in the pattern.
  std::optional<Dims> dimensions;
};

bool IsDimensions(std::int64_t size) { return size == kAnyDimensions || size == kOwnDimensions; }

// Whether `dims` is a case of the pattern under the rules of TensorSignature, and none that
// contradicts the variables of tensors before it, to which this one adds its own.
bool Matches(const ShapePattern& pattern, const Dims& dims, Variables& variables) {
  const std::size_t fixed = pattern.size() - static_cast<std::size_t>(std::count_if(
                                                 pattern.begin(), pattern.end(), IsDimensions));
  if (dims.size() < fixed || (dims.size() > fixed && fixed == pattern.size())) return false;
  std::size_t at = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const bool counts_samples = i == 0;
    const auto is_allowed = [&](std::int64_t size) { return size > 0 || counts_samples; };
    if (IsDimensions(pattern[i])) {
      const auto first = dims.begin() + static_cast<std::ptrdiff_t>(at);
      const Dims run(first, first + static_cast<std::ptrdiff_t>(dims.size() - fixed));
      if (!std::all_of(run.begin(), run.end(), is_allowed)) return false;
      at += run.size();
      if (pattern[i] == kOwnDimensions) continue;
      if (variables.dimensions.value_or(run) != run) return false;
      variables.dimensions = run;
      continue;
    }
    const std::int64_t size = dims[at++];
    if (pattern[i] == kAnySize) {
      if (!is_allowed(size)) return false;
      if (variables.sizes.emplace(i, size).first->second != size) return false;
    } else if (size != pattern[i]) {
      return false;
    }
  }
  return true;
}

std::optional<Variables> Bind(const std::vector<TensorSignature>& tensors,
                              const std::vector<Dims>& shapes) {
  Variables variables;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!Matches(tensors[i].shape, shapes[i], variables)) return std::nullopt;
  }
  return variables;
}

Dims Fill(const ShapePattern& pattern, const Variables& variables) {
  Dims dims;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (IsDimensions(pattern[i])) {
      dims.insert(dims.end(), variables.dimensions->begin(), variables.dimensions->end());
    } else {
      dims.push_back(pattern[i] == kAnySize ? variables.sizes.at(i) : pattern[i]);
    }
  }
  return dims;
}

// Holds one request against the signature; returns whether it was accepted.
bool CheckAgrees(const Operation& operation, const std::vector<Dims>& shapes) {
  const Signature& signature = operation.signature();
  std::vector<TensorType> inputs;
  std::string text;
  for (const Dims& dims : shapes) {
    const DType dtype = DTypeOf(signature.inputs[inputs.size()], DType::kFloat32);
    inputs.push_back({dtype, *Shape::Create(dims)});
    text += inputs.back().shape.ToString();
  }
  const std::optional<Variables> variables = Bind(signature.inputs, shapes);
  const auto geometry = operation.Check(inputs);
  EXPECT_EQ(geometry.ok(), variables.has_value()) << text << ": " << geometry.status();
  if (!geometry.ok() || !variables) return false;
  const auto outputs = operation.Outputs(inputs);
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    EXPECT_EQ(outputs[k].shape, *Shape::Create(Fill(signature.outputs[k].shape, *variables)))
        << text;
  }
  return true;
}

// Every shape of up to `rank` dimensions of these sizes.
void ForEachShape(int rank, const std::function<void(const Dims&)>& visit, Dims dims = {}) {
  visit(dims);
  if (rank == 0) return;
  for (const std::int64_t size : {0, 1, 2, 3, 4, 5, 6, 12, 13}) {
    dims.push_back(size);
    ForEachShape(rank - 1, visit, dims);
    dims.pop_back();
  }
}

// What the signature tells clients is what Check accepts: every small shape of the first input,
// with further inputs that go with it and with ones that nearly do.
TEST(OperationSignatureTest, CheckAcceptsExactlyWhatTheSignatureSays) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.config);
    const auto operation = *MakeOperation(ParseConfig(one.config));
    const std::vector<TensorSignature>& tensors = operation->signature().inputs;
    int accepted = 0;
    int refused = 0;
    const auto check = [&](const std::vector<Dims>& shapes) {
      ++(CheckAgrees(*operation, shapes) ? accepted : refused);
    };
    ForEachShape(4, [&](const Dims& x) {
      Variables variables;
      const bool fits = Matches(tensors.front().shape, x, variables);
      std::vector<Dims> shapes(tensors.size(), x);
      for (std::size_t i = 1; i < tensors.size() && fits; ++i) {
        shapes[i] = Fill(tensors[i].shape, variables);
      }
      check(shapes);
      for (std::size_t i = 1; i < tensors.size() && fits; ++i) {
        const auto check_other = [&](const Dims& other) {
          std::vector<Dims> changed = shapes;
          changed[i] = other;
          check(changed);
        };
        for (std::size_t k = 0; k <= shapes[i].size(); ++k) {
          Dims longer = shapes[i];
          longer.insert(longer.begin() + static_cast<std::ptrdiff_t>(k), 1);
          check_other(longer);
          if (k == shapes[i].size()) continue;
          for (const std::int64_t size : {std::int64_t{0}, shapes[i][k] + 1}) {
            Dims other = shapes[i];
            other[k] = size;
            check_other(other);
          }
          Dims shorter = shapes[i];
          shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(k));
          check_other(shorter);
        }
        check_other(x);
      }
    });
    EXPECT_GT(accepted, 10);
    EXPECT_GT(refused, 1000);
  }
}

TEST(OperationSignatureTest, TheSignatureNamesEachTensorOnceAndIsAPattern) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.config);
    const auto operation = *MakeOperation(ParseConfig(one.config));
    for (const auto& tensors : {operation->signature().inputs, operation->signature().outputs}) {
      std::set<absl::string_view> names;
      for (const TensorSignature& tensor : tensors) {
        EXPECT_FALSE(tensor.name.empty());
        EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
        int any_dimensions = 0;
        for (const std::int64_t size : tensor.shape) {
          EXPECT_TRUE(size >= 1 || size == kAnySize || IsDimensions(size)) << size;
          any_dimensions += IsDimensions(size) ? 1 : 0;
        }
        EXPECT_LE(any_dimensions, 1);
      }
      EXPECT_FALSE(tensors.empty());
    }
  }
}

}  // namespace
}  // namespace normd
