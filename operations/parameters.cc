#include "operations/parameters.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/printable.h"
#include "operations/norm_operation.h"
#include "operations/operations.h"
#include "operations/safetensors.h"

namespace normd {
namespace {

std::string Quoted(absl::string_view name) { return Printable(name, 64); }

std::string Describe(const TensorEntry& tensor) {
  return absl::StrCat(Quoted(tensor.name), " ", tensor.dtype, " ", tensor.shape.ToString());
}

// The last part of a dotted name, and the part before it with the dot.
std::pair<absl::string_view, absl::string_view> SplitLast(absl::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == absl::string_view::npos) return {"", name};
  return {name.substr(0, dot + 1), name.substr(dot + 1)};
}

// The index of the first NaN in `data`, whose bits without the sign are above infinity's;
// `elements` when there is none.
template <typename Bits>
std::int64_t FirstNaN(const std::byte* data, std::int64_t elements, Bits infinity) {
  constexpr auto kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
  // In blocks without a branch, which compile to vector instructions: parameters can be gigabytes.
  constexpr std::int64_t kBlock = 4096;
  const auto is_nan = [&](std::int64_t i) {
    Bits bits;
    std::memcpy(&bits, data + i * static_cast<std::int64_t>(sizeof(bits)), sizeof(bits));
    return static_cast<Bits>(bits & kMagnitude) > infinity;
  };
  for (std::int64_t begin = 0; begin < elements; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, elements);
    bool any = false;
    for (std::int64_t i = begin; i < end; ++i) any |= is_nan(i);
    for (std::int64_t i = begin; any && i < end; ++i) {
      if (is_nan(i)) return i;
    }
  }
  return elements;
}

bool Fits(const TensorEntry& tensor, const ExpectedParameter& wanted) {
  if (wanted.shape.rank() == 0) return tensor.shape.rank() <= 1 && tensor.shape.elements() == 1;
  return tensor.shape == wanted.shape;
}

class Matcher {
 public:
  Matcher(const v1::ModelConfig& config, const ParameterRules& rules,
          absl::Span<const TensorEntry> tensors)
      : config_(config),
        rules_(rules),
        tensors_(tensors),
        expected_(rules.expected),
        used_(tensors.size(), false) {
    for (std::size_t i = 0; i < tensors.size(); ++i) by_name_.emplace(tensors[i].name, i);
  }

  absl::StatusOr<std::vector<MatchedParameter>> Run() {
    for (const ExpectedParameter& wanted : expected_) {
      if (absl::Status status = Match(wanted); !status.ok()) return status;
    }
    if (absl::Status status = CheckMissing(); !status.ok()) return status;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (used_[i]) continue;
      if (absl::Status status = CheckUnused(tensors_[i]); !status.ok()) return status;
    }
    return std::move(matched_);
  }

 private:
  bool IsNamed(const ExpectedParameter& wanted) const {
    return config_.parameter_names().contains(wanted.name);
  }
  // The name with the prefix.
  std::string NameOf(const ExpectedParameter& wanted) const {
    const auto named = config_.parameter_names().find(wanted.name);
    return absl::StrCat(config_.parameter_prefix(), named == config_.parameter_names().end()
                                                        ? absl::string_view(wanted.name)
                                                        : absl::string_view(named->second));
  }
  // "weight", or "weight (norm.scale)" if the file has that name.
  std::string Title(const ExpectedParameter& wanted) const {
    const std::string name = NameOf(wanted);
    return absl::StrCat("parameter ", wanted.name,
                        name == wanted.name ? "" : absl::StrCat(" (", Quoted(name), ")"));
  }
  bool Explicit() const {
    return !config_.parameter_prefix().empty() || !config_.parameter_names().empty();
  }
  bool Found(const ExpectedParameter& wanted) const {
    return std::any_of(matched_.begin(), matched_.end(), [&wanted](const MatchedParameter& match) {
      return absl::string_view(match.parameter.name) == wanted.name;
    });
  }

  absl::Status Match(const ExpectedParameter& wanted) {
    const auto found = by_name_.find(NameOf(wanted));
    if (found == by_name_.end()) return absl::OkStatus();
    const TensorEntry& tensor = tensors_[found->second];
    if (!Fits(tensor, wanted)) {
      return absl::InvalidArgumentError(absl::StrCat(Title(wanted), ": shape ",
                                                     tensor.shape.ToString(), ", wanted ",
                                                     wanted.shape.ToString()));
    }
    if (!ParameterDType(tensor.dtype)) {
      return absl::InvalidArgumentError(
          absl::StrCat(Title(wanted), ": dtype ", tensor.dtype, ", wanted F32, F64, F16 or BF16"));
    }
    used_[found->second] = true;
    matched_.push_back({wanted, found->second});
    return absl::OkStatus();
  }

  absl::Status CheckMissing() const {
    const ExpectedParameter* optional = nullptr;
    bool one_found = false;
    for (const ExpectedParameter& wanted : expected_) {
      const bool found = Found(wanted);
      if (!found && (wanted.required || IsNamed(wanted))) return Missing(wanted);
      if (!wanted.required) {
        one_found |= found;
        if (optional == nullptr) optional = &wanted;
      }
    }
    // Weight or bias may be missing, but not both: then it would not be affine.
    return optional == nullptr || one_found ? absl::OkStatus() : Missing(*optional);
  }

  absl::Status Missing(const ExpectedParameter& wanted) const {
    return absl::InvalidArgumentError(absl::StrCat(Title(wanted), ": missing, wanted shape ",
                                                   wanted.shape.ToString(), "; ", WhatIsThere(),
                                                   Advice(wanted)));
  }

  std::string WhatIsThere() const {
    constexpr std::size_t kMost = 8;
    if (tensors_.empty()) return "the file has no tensors";
    const auto describe = [](std::string* out, const TensorEntry& tensor) {
      out->append(Describe(tensor));
    };
    const std::size_t shown = std::min(kMost, tensors_.size());
    return absl::StrCat(
        "the file has ", absl::StrJoin(tensors_.first(shown), ", ", describe),
        shown < tensors_.size() ? absl::StrCat(" and ", tensors_.size() - shown, " more") : "");
  }

  // The prefix that would find it, if there is one.
  std::string Advice(const ExpectedParameter& wanted) const {
    std::set<std::string> prefixes;
    for (const TensorEntry& tensor : tensors_) {
      if (!Fits(tensor, wanted)) continue;
      if (const auto prefix = PrefixOf(tensor.name, wanted.name)) {
        prefixes.insert(absl::StrCat("parameter_prefix: \"", Quoted(*prefix), "\""));
      }
    }
    constexpr std::size_t kMost = 4;
    if (prefixes.empty()) return "";
    if (prefixes.size() > kMost) return "; parameter_prefix says which";
    return absl::StrCat("; ", absl::StrJoin(prefixes, " or "), " would find it");
  }

  // The part before `name` at the end of a tensor's dotted name; nullopt if it does not end with
  // it.
  static std::optional<absl::string_view> PrefixOf(absl::string_view tensor,
                                                   absl::string_view name) {
    if (!absl::EndsWith(tensor, name)) return std::nullopt;
    const absl::string_view prefix = tensor.substr(0, tensor.size() - name.size());
    if (prefix.empty() || prefix.back() != '.') return std::nullopt;
    return prefix;
  }

  static bool IsAmong(absl::Span<const absl::string_view> names, absl::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }

  bool SomeOptionalIsMissing() const {
    return std::any_of(expected_.begin(), expected_.end(), [this](const ExpectedParameter& wanted) {
      return !wanted.required && !Found(wanted);
    });
  }

  absl::Status CheckUnused(const TensorEntry& tensor) const {
    const bool inside = absl::StartsWith(tensor.name, config_.parameter_prefix());
    const absl::string_view name =
        inside ? absl::string_view(tensor.name).substr(config_.parameter_prefix().size()) : "";
    if (inside && IsAmong(rules_.torch_names, name)) return Unused(tensor);
    // Any other tensor is only suspicious if it could be a parameter of this operation.
    if (!ParameterDType(tensor.dtype) || !(tensor.shape == rules_.norm_shape)) {
      return absl::OkStatus();
    }
    if (expected_.empty()) return Suspect(tensor);
    const auto [module, last] = SplitLast(name);
    const bool beside = inside && module.empty();
    if (beside && config_.parameter_names().empty() && SomeOptionalIsMissing()) {
      return Suspect(tensor);
    }
    // In another module, if the prefix was not given; or a norm's weights with an operation whose
    // own norm has none.
    const bool unsaid =
        !Explicit() || (!rules_.norm_has_parameters && inside && config_.parameter_names().empty());
    if (unsaid && !module.empty() && IsAmong(TorchNormNames(), last)) return Suspect(tensor);
    return absl::OkStatus();
  }

  absl::Status Unused(const TensorEntry& tensor) const {
    const auto name = [](std::string* out, const ExpectedParameter& wanted) {
      out->append(wanted.name);
    };
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter ", Quoted(tensor.name), ": present, but the config does not use it, ",
        expected_.empty() ? "wanted no parameters"
                          : absl::StrCat("wanted ", absl::StrJoin(expected_, ", ", name))));
  }

  absl::Status Suspect(const TensorEntry& tensor) const {
    const absl::string_view module = SplitLast(tensor.name).first;
    std::string advice;
    if (expected_.empty()) {
      advice = absl::StrCat(
          "set affine: true",
          module.empty() ? "" : absl::StrCat(" and parameter_prefix: \"", Quoted(module), "\""),
          ", or leave params.safetensors away, which this config does not need");
    } else if (!rules_.norm_has_parameters) {
      advice =
          "a norm with parameters needs a model of its own; parameter_names says which tensors "
          "are meant";
    } else if (module.empty()) {
      advice = "say in parameter_names which tensor is which parameter";
    } else {
      advice = absl::StrCat("set parameter_prefix: \"", Quoted(module),
                            "\", or say in parameter_names which tensors are meant");
    }
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Describe(tensor),
                     ": looks like a parameter of this operation and would not be used; ", advice));
  }

  const v1::ModelConfig& config_;
  const ParameterRules& rules_;
  const absl::Span<const TensorEntry> tensors_;
  const std::vector<ExpectedParameter>& expected_;
  absl::flat_hash_map<absl::string_view, std::size_t> by_name_;
  std::vector<bool> used_;
  std::vector<MatchedParameter> matched_;
};

}  // namespace

absl::StatusOr<std::vector<MatchedParameter>> MatchParameters(
    const v1::ModelConfig& config, const ParameterRules& rules,
    absl::Span<const TensorEntry> tensors) {
  return Matcher(config, rules, tensors).Run();
}

absl::StatusOr<std::vector<MatchedParameter>> MatchParameters(
    const v1::ModelConfig& config, absl::Span<const TensorEntry> tensors) {
  const absl::StatusOr<std::unique_ptr<const Operation>> operation = MakeOperation(config);
  if (!operation.ok()) return operation.status();
  return MatchParameters(config, (*operation)->parameters(), tensors);
}

absl::Status CheckNoNaN(const Parameter& parameter) {
  const std::int64_t elements = parameter.shape.elements();
  const std::byte* const data = parameter.data.get();
  std::int64_t first = elements;
  switch (parameter.dtype) {
    case norm::DType::kFloat32: first = FirstNaN<std::uint32_t>(data, elements, 0x7f800000); break;
    case norm::DType::kFloat64:
      first = FirstNaN<std::uint64_t>(data, elements, 0x7ff0000000000000);
      break;
    case norm::DType::kFloat16: first = FirstNaN<std::uint16_t>(data, elements, 0x7c00); break;
    case norm::DType::kBFloat16: first = FirstNaN<std::uint16_t>(data, elements, 0x7f80); break;
    case norm::DType::kInt8:
    case norm::DType::kFloat8E4M3:
    case norm::DType::kInt64: break;  // No parameter has these types.
  }
  if (first == elements) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("parameter ", Quoted(parameter.name), ": element ",
                                                 first, " is NaN, wanted numbers"));
}

absl::StatusOr<std::vector<Parameter>> ReadParameters(const v1::ModelConfig& config,
                                                      const ParameterRules& rules,
                                                      InputFile& file) {
  absl::StatusOr<SafetensorsFile> tensors = SafetensorsFile::Open(file);
  if (!tensors.ok()) return tensors.status();
  const absl::StatusOr<std::vector<MatchedParameter>> matches =
      MatchParameters(config, rules, tensors->tensors());
  if (!matches.ok()) return matches.status();
  std::vector<Parameter> parameters;
  for (const MatchedParameter& match : *matches) {
    absl::StatusOr<Parameter> parameter = tensors->Read(tensors->tensors()[match.tensor]);
    if (!parameter.ok()) return parameter.status();
    if (absl::Status status = CheckNoNaN(*parameter); !status.ok()) return status;
    parameters.push_back(*std::move(parameter));
  }
  return parameters;
}

absl::StatusOr<BoundParameters> BindParameters(const v1::ModelConfig& config,
                                               const ParameterRules& rules,
                                               std::vector<Parameter>& parameters) {
  absl::flat_hash_set<absl::string_view> names;
  std::vector<TensorEntry> tensors;
  for (const Parameter& parameter : parameters) {
    if (!names.insert(parameter.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", Printable(parameter.name, 64), ": twice"));
    }
    tensors.push_back(
        {parameter.name, std::string(SafetensorsName(parameter.dtype)), parameter.shape, 0, 0});
  }
  const absl::StatusOr<std::vector<MatchedParameter>> matches =
      MatchParameters(config, rules, tensors);
  if (!matches.ok()) return matches.status();
  BoundParameters bound;
  std::vector<Parameter> used;
  for (const MatchedParameter& match : *matches) {
    const Parameter& parameter = parameters[match.tensor];
    bound[match.parameter.name] = {parameter.data.get(), parameter.dtype};
    used.push_back(parameter);
  }
  parameters = std::move(used);
  return bound;
}

}  // namespace normd
