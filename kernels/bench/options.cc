#include "kernels/bench/options.h"

#include <algorithm>
#include <charconv>
#include <map>

namespace normd::norm::bench {

const char kUsage[] =
    R"(Usage: norm_bench [flags]

norm_bench measures the normalizations' speed and error against a copy of the same tensor.

  norm_bench --ops=group_norm:32+silu --shapes=16x512x128x128
  norm_bench --device=cuda --ops=rms_norm,layer_norm --shapes=4096x8192 --dtypes=bfloat16

  --device=cpu|cuda       where to run (cpu)
  --ops=LIST              instance_norm, batch_norm, layer_norm, rms_norm, l1_norm, l2_norm,
                          max_norm, group_norm:GROUPS, position_layer_norm,
                          position_rms_norm; each with any of +relu, +leaky_relu, +silu, +gelu,
                          +gelu_tanh, and of +residual, +gate, +scale, +shift, +styles:COUNT,
                          +style_tensor, +input_bias, +input_multiply, +input_multiply_silu,
                          +multiply, +multiply_silu, +statistics, and +int8 or +e4m3, alone or
                          with :row or :block
  --shapes=LIST           such as 16x512x128x128; layer_norm, rms_norm, l1_norm, l2_norm and
                          max_norm normalize over all dimensions but the first
  --dtypes=LIST           float32, float64, float16, bfloat16 (float32)
  --layouts=LIST          first, last (first)
  --param_dtype=DTYPE     of gamma, beta, mean and variance (float32)
  --linear=LIST           instead of the norms: the fused layer of samples x in x out, such as
                          1024x8192x8192; on the CPU against oneDNN's matrix product alone
  --precisions=LIST       of the fused layer: float32, tf32, bf16, float32_strict (float32)
  --suite                 the suite of docs/experiments.md, with parameters of the tensor's type
  --filter=TEXT           keeps the cases whose line contains TEXT
  --threads=N             cpu only: threads of the norm and of the copy (all)
  --min_time=SECONDS      time spent on each case (0.5)
  --max_tensor_mib=N      halves the first dimension of larger tensors (a sixth of the memory)
  --seed=N                of the inputs (1)
  --strategy=NAME         cuda only: forces a strategy, or the fused layer's tile
  --explain               prints how each case would be computed, and computes nothing
  --json=FILE             writes the results as JSON too

Without --ops and --shapes the default suite runs; --dtypes and --layouts then select from it.
LISTs are separated by commas.
)";

namespace {

std::vector<std::string> SplitAtCommas(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

template <typename Number>
Status ParseNumber(const std::string& flag, const std::string& text, Number* value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  if (error == std::errc() && stop == end && *value >= Number{0}) return Status();
  return InvalidArgument("--" + flag + ": \"" + text + "\", wanted a number >= 0");
}

// Flags by name with their default values; the command line may name only these.
using Flags = std::map<std::string, std::string>;

Status ReadFlags(const std::vector<std::string>& arguments, Flags* flags) {
  for (const std::string& argument : arguments) {
    const std::size_t equals = std::min(argument.find('='), argument.size());
    const auto flag =
        argument.starts_with("--") ? flags->find(argument.substr(2, equals - 2)) : flags->end();
    if (flag == flags->end()) {
      return InvalidArgument("\"" + argument + "\": no such flag (see --help)");
    }
    flag->second = equals == argument.size() ? "true" : argument.substr(equals + 1);
  }
  return Status();
}

Status MakeCases(const Flags& flags, std::vector<Case>* cases) {
  const auto list = [&flags](const char* flag, std::vector<std::string> when_empty) {
    std::vector<std::string> parts = SplitAtCommas(flags.at(flag));
    return parts.empty() ? when_empty : parts;
  };
  const bool named = !flags.at("ops").empty() || !flags.at("shapes").empty();
  if (named && (flags.at("ops").empty() || flags.at("shapes").empty())) {
    return InvalidArgument("--ops and --shapes: wanted both or neither");
  }
  if (named && !flags.at("suite").empty()) {
    return InvalidArgument("--suite: with --ops and --shapes, wanted one or the other");
  }
  if (named) {
    for (const std::string& operation : list("ops", {})) {
      for (const std::string& dtype : list("dtypes", {"float32"})) {
        for (const std::string& layout : list("layouts", {"first"})) {
          for (const std::string& shape : list("shapes", {})) {
            Case c;
            Status status = MakeCase(operation, dtype, layout, shape, &c);
            if (!status.ok()) return status;
            cases->push_back(std::move(c));
          }
        }
      }
    }
    return Status();
  }
  *cases = flags.at("suite").empty() ? DefaultSuite() : FullSuite();
  // Parsed through a case, so that the short names work and a wrong one is an error here too.
  const auto keep_only = [&](const std::vector<std::string>& wanted, bool by_dtype) -> Status {
    if (wanted.empty()) return Status();
    std::vector<Case> probes;
    for (const std::string& text : wanted) {
      Case probe;
      Status status =
          MakeCase("layer_norm", by_dtype ? text : "f32", by_dtype ? "first" : text, "1x1", &probe);
      if (!status.ok()) return status;
      probes.push_back(probe);
    }
    std::erase_if(*cases, [&](const Case& c) {
      return std::none_of(probes.begin(), probes.end(), [&](const Case& probe) {
        return by_dtype ? probe.spec.dtype == c.spec.dtype : probe.spec.layout == c.spec.layout;
      });
    });
    return Status();
  };
  if (Status status = keep_only(list("dtypes", {}), true); !status.ok()) return status;
  return keep_only(list("layouts", {}), false);
}

Status MakeLinearCases(const Flags& flags, std::vector<LinearCase>* cases) {
  std::vector<std::string> dtypes = SplitAtCommas(flags.at("dtypes"));
  std::vector<std::string> precisions = SplitAtCommas(flags.at("precisions"));
  if (dtypes.empty()) dtypes = {"float32"};
  if (precisions.empty()) precisions = {Name(Precision::kFloat32)};
  for (const std::string& precision : precisions) {
    for (const std::string& dtype : dtypes) {
      for (const std::string& shape : SplitAtCommas(flags.at("linear"))) {
        LinearCase c;
        Status status = ParseLinearCase(shape, dtype, precision, &c);
        if (!status.ok()) return status;
        cases->push_back(c);
      }
    }
  }
  return Status();
}

}  // namespace

Status ParseOptions(const std::vector<std::string>& arguments, Options* out) {
  Flags flags = {
      {"device", "cpu"}, {"ops", ""},         {"shapes", ""},
      {"dtypes", ""},    {"layouts", ""},     {"param_dtype", "float32"},
      {"linear", ""},    {"precisions", ""},  {"filter", ""},
      {"threads", "0"},  {"min_time", "0.5"}, {"max_tensor_mib", "0"},
      {"seed", "1"},     {"strategy", ""},    {"explain", ""},
      {"json", ""},      {"help", ""},        {"suite", ""},
  };
  if (Status status = ReadFlags(arguments, &flags); !status.ok()) return status;
  out->device = flags["device"];
  out->filter = flags["filter"];
  out->json_path = flags["json"];
  out->explain = !flags["explain"].empty();
  out->help = !flags["help"].empty();
  Settings& settings = out->settings;
  settings.strategy = flags["strategy"];
  settings.params_like_tensor = !flags["suite"].empty();
  std::int64_t max_tensor_mib = 0;
  Case param;
  for (Status status : {ParseNumber("threads", flags["threads"], &settings.threads),
                        ParseNumber("min_time", flags["min_time"], &settings.min_seconds),
                        ParseNumber("max_tensor_mib", flags["max_tensor_mib"], &max_tensor_mib),
                        ParseNumber("seed", flags["seed"], &settings.seed),
                        MakeCase("layer_norm", flags["param_dtype"], "first", "1x1", &param),
                        MakeCases(flags, &out->cases)}) {
    if (!status.ok()) return status;
  }
  if (Status status = MakeLinearCases(flags, &out->linear_cases); !status.ok()) return status;
  settings.max_tensor_bytes = max_tensor_mib << 20;
  settings.param_dtype = param.spec.dtype;
  std::erase_if(out->cases,
                [out](const Case& c) { return c.name().find(out->filter) == std::string::npos; });
  return Status();
}

}  // namespace normd::norm::bench
