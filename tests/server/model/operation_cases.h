// Configs of every operation, with requests that each takes.

#ifndef NORMD_TESTS_SERVER_MODEL_OPERATION_CASES_H_
#define NORMD_TESTS_SERVER_MODEL_OPERATION_CASES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "server/model/config.h"

namespace normd {

inline v1::ModelConfig ParseConfig(const std::string& text) {
  const auto config = ParseModelConfig(text);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(v1::ModelConfig());
}

struct Case {
  std::string config;
  // Shapes of requests that it accepts, one for each input.
  std::vector<std::vector<std::vector<std::int64_t>>> requests;
};

inline std::vector<Case> Cases() {
  const std::string linear = "linear_norm { in_features: 4 out_features: 6 ";
  std::vector<Case> cases;
  for (const std::string layout : {"", " layout: CHANNELS_LAST"}) {
    const bool last = !layout.empty();
    const auto x = [last](std::int64_t n, std::int64_t s) {
      return last ? std::vector<std::int64_t>{n, s, 12} : std::vector<std::int64_t>{n, 12, s};
    };
    for (const std::string norm :
         {"instance_norm { channels: 12 }", "group_norm { channels: 12 groups: 4 affine: false }",
          "batch_norm { channels: 12 affine: false }"}) {
      cases.push_back({norm + layout, {{x(0, 5)}, {x(1, 1)}, {x(3, 7)}}});
    }
  }
  for (const std::string norm : {"layer_norm", "rms_norm"}) {
    cases.push_back({norm + " { normalized_shape: [2, 3] affine: false }",
                     {{{2, 3}}, {{0, 2, 3}}, {{5, 2, 2, 3}}}});
  }
  cases.push_back({"add_rms_norm { normalized_shape: [2, 3] affine: false }",
                   {{{2, 3}, {2, 3}}, {{0, 2, 3}, {0, 2, 3}}, {{5, 2, 2, 3}, {5, 2, 2, 3}}}});
  cases.push_back({"add_layer_norm { normalized_shape: [2, 3] }",
                   {{{2, 3}, {2, 3}}, {{5, 2, 2, 3}, {5, 2, 2, 3}}}});
  for (const std::string more : {"", "norm_before_gate: true", "group_size: 3"}) {
    cases.push_back({"gated_rms_norm { normalized_shape: [2, 3] " + more + " }",
                     {{{2, 3}, {2, 3}}, {{0, 2, 3}, {0, 2, 3}}, {{5, 2, 3}, {5, 2, 3}}}});
  }
  cases.push_back({"lp_normalize { normalized_shape: 6 }", {{{6}}, {{0, 6}}, {{5, 2, 6}}}});
  cases.push_back(
      {"scale_norm { normalized_shape: [2, 3] }", {{{2, 3}}, {{0, 2, 3}}, {{5, 2, 2, 3}}}});
  for (const std::string norm : {"layer_norm", "rms_norm", "lp_normalize"}) {
    cases.push_back(
        {norm + " { normalized_shape: 3 axes: 1 }", {{{2, 3}}, {{0, 3, 5}}, {{2, 3, 2, 4}}}});
    cases.push_back(
        {norm + " { normalized_shape: [2, 3] axes: [2, 3] }", {{{1, 1, 2, 3}}, {{2, 3, 2, 3, 4}}}});
    cases.push_back(
        {norm + " { normalized_shape: [2, 3] axes: [-2, -1] }", {{{2, 3}}, {{5, 2, 2, 3}}}});
    cases.push_back({norm + " { normalized_shape: [2, 3] axes: [1, 3] }",
                     {{{0, 2, 4, 3}}, {{5, 2, 1, 3}}, {{2, 2, 4, 3, 5, 2}}}});
    cases.push_back({norm + " { normalized_shape: [2, 3] axes: [-4, -2] }",
                     {{{2, 4, 3, 5}}, {{0, 3, 2, 4, 3, 1}}}});
    cases.push_back({norm + " { normalized_shape: 3 axes: -3 }", {{{3, 1, 2}}, {{4, 0, 3, 5, 2}}}});
  }
  cases.push_back(
      {"adaptive_layer_norm { features: 6 }",
       {{{0, 6}, {0, 6}, {0, 6}}, {{2, 6}, {2, 6}, {2, 6}}, {{2, 5, 6}, {2, 6}, {2, 6}}}});
  cases.push_back(
      {"adaptive_layer_norm { features: 6 gated_residual: true }",
       {{{2, 6}, {2, 6}, {2, 6}, {2, 6}, {2, 6}}, {{2, 5, 6}, {2, 5, 6}, {2, 6}, {2, 6}, {2, 6}}}});
  cases.push_back({"adaptive_group_norm { channels: 6 groups: 2 }",
                   {{{2, 6, 5}, {2, 6}, {2, 6}}, {{1, 6, 2, 2}, {1, 6}, {1, 6}}}});
  cases.push_back({"adaptive_group_norm { channels: 6 groups: 2 } layout: CHANNELS_LAST",
                   {{{2, 5, 6}, {2, 6}, {2, 6}}}});
  cases.push_back(
      {"adaptive_instance_norm { channels: 4 }", {{{0, 4, 2}, {0, 4}}, {{2, 4, 3}, {2, 4, 5, 1}}}});
  cases.push_back({"conditional_instance_norm { channels: 4 styles: 3 }",
                   {{{2, 4, 5}, {2, 3}}, {{0, 4}, {0, 3}}}});
  cases.push_back({"conditional_instance_norm { channels: 4 styles: 3 by_index: true }",
                   {{{2, 4, 5}, {2}}, {{0, 4}, {0}}}});
  for (const std::string scales : {"scale: 0.5", "scales: PER_ROW", "scales: PER_BLOCK"}) {
    const std::string quantized = " quantization { dtype: INT8 " + scales + " }";
    cases.push_back({"rms_norm { normalized_shape: [2, 3] affine: false }" + quantized,
                     {{{2, 3}}, {{0, 2, 3}}, {{5, 2, 2, 3}}}});
    cases.push_back({"gated_rms_norm { normalized_shape: [2, 3] group_size: 3 }" + quantized,
                     {{{2, 3}, {2, 3}}, {{5, 2, 3}, {5, 2, 3}}}});
    cases.push_back({"adaptive_layer_norm { features: 6 }" + quantized,
                     {{{2, 6}, {2, 6}, {2, 6}}, {{2, 5, 6}, {2, 6}, {2, 6}}}});
    if (scales == "scales: PER_BLOCK") continue;
    cases.push_back({"layer_norm { normalized_shape: 3 axes: 1 }" + quantized,
                     {{{2, 3}}, {{0, 3, 5}}, {{2, 3, 2, 4}}}});
    cases.push_back({"group_norm { channels: 12 groups: 4 affine: false }" + quantized,
                     {{{0, 12, 5}}, {{3, 12, 7}}}});
  }
  cases.push_back({linear + "}", {{{4}}, {{0, 4}}, {{2, 3, 4}}}});
  for (const std::string epilogue : {"add: true", "multiply: true", "add: true multiply: true"}) {
    cases.push_back({linear + "epilogue { " + epilogue + " } }",
                     {{{4}, {6}}, {{0, 4}, {0, 6}}, {{2, 3, 4}, {2, 3, 6}}}});
  }
  return cases;
}

}  // namespace normd

#endif  // NORMD_TESTS_SERVER_MODEL_OPERATION_CASES_H_
