#include <string>
#include <vector>

#include "kernels/bench/case.h"

namespace normd::norm::bench {
namespace {

struct Lines {
  std::vector<std::string> operations;
  std::vector<std::string> dtypes;
  std::vector<std::string> layouts;
  std::vector<std::string> shapes;
};

const std::vector<Lines>& PlainLines() {
  static const auto* const lines = new std::vector<Lines>{
      // The headline tensors.
      {{"instance_norm", "group_norm:8", "batch_norm"}, {"f32"}, {"first"}, {"112x64x512x512"}},
      // Rows of elements, 512 MiB; the shortest 48 MiB or less.
      {{"layer_norm", "rms_norm"},
       {"f32"},
       {"first"},
       {"131072x1024", "32768x4096", "8192x16384", "4096x32768", "2048x65536", "512x262144"}},
      {{"layer_norm", "rms_norm"},
       {"bf16"},
       {"first"},
       {"262144x128", "65536x256", "65536x384", "16384x1024", "262144x1024", "65536x4096",
        "16384x16384", "8192x32768", "4096x65536"}},
      {{"layer_norm"}, {"f16"}, {"first"}, {"262144x1024", "65536x4096", "4096x65536"}},
      {{"layer_norm"}, {"f32"}, {"first"}, {"16x4194304"}},
      // Ragged rows.
      {{"layer_norm"},
       {"f32"},
       {"first"},
       {"131072x1023", "32768x4097", "8192x16383", "6700x20001", "4096x32769", "1024x131073"}},
      {{"layer_norm", "rms_norm"},
       {"bf16"},
       {"first"},
       {"262144x1023", "262144x1025", "131072x2047", "65536x4097", "8192x32767", "6000x40001",
        "4096x65537"}},
      // Activations behind rows over several blocks, beside the same rows without.
      {{"layer_norm+relu", "layer_norm+silu", "layer_norm+gelu", "layer_norm+gelu_tanh"},
       {"f32", "bf16"},
       {"first"},
       {"2048x65536"}},
      {{"layer_norm+gelu"}, {"f32"}, {"first"}, {"16x4194304", "65536x1024"}},
      {{"group_norm:32", "group_norm:32+silu", "group_norm:32+gelu"},
       {"f16", "bf16", "f32"},
       {"first", "last"},
       {"16x512x128x128"}},
      {{"group_norm:32+silu"},
       {"f16", "bf16"},
       {"first", "last"},
       {"4x512x128x128", "2x128x512x512", "1x256x1024x1024", "8x640x32x32", "2x320x64x64"}},
      // Channels and given statistics.
      {{"instance_norm"}, {"f32"}, {"first"}, {"32x64x256x256", "512x64x57x57", "1x64x512x512"}},
      {{"instance_norm"}, {"f16"}, {"first"}, {"512x64x56x56", "512x64x57x57"}},
      {{"batch_norm"}, {"f32", "f16"}, {"first", "last"}, {"8x64x512x512", "64x512x28x28"}},
      // Small tensors.
      {{"rms_norm", "layer_norm"},
       {"bf16"},
       {"first"},
       {"1x4096", "16x4096", "64x8192", "256x4096", "1024x5120", "64x768"}},
      {{"layer_norm"}, {"f32"}, {"first"}, {"64x768"}},
      {{"instance_norm"}, {"f32"}, {"first"}, {"1x64x56x56", "8x64x32x32", "64x64x14x14"}},
      {{"group_norm:4"}, {"f32"}, {"first", "last"}, {"8x64x32x32"}},
      {{"batch_norm"}, {"f32", "bf16"}, {"first"}, {"8x64x56x56"}},
  };
  return *lines;
}

// Norms with stages, and norms other than the mean square.
const std::vector<Lines>& StageLines() {
  static const auto* const lines = new std::vector<Lines>{
      {{"rms_norm+residual", "layer_norm+residual", "rms_norm+e4m3:row", "layer_norm+e4m3:row",
        "rms_norm+e4m3:block", "layer_norm+int8:block"},
       {"bf16"},
       {"first"},
       {"16384x4096", "8192x7168", "8192x4097"}},
      {{"rms_norm+input_multiply_silu", "layer_norm+input_bias", "rms_norm+input_bias",
        "layer_norm+statistics"},
       {"f32", "bf16"},
       {"first"},
       {"16384x4096"}},
      {{"rms_norm+residual", "rms_norm+e4m3:row"}, {"bf16"}, {"first"}, {"4096x65536"}},
      {{"layer_norm+residual"}, {"f32"}, {"first"}, {"512x262144"}},
      {{"l2_norm"}, {"bf16"}, {"first"}, {"65536x768"}},
      {{"l1_norm", "l2_norm", "max_norm"},
       {"f32", "bf16"},
       {"first"},
       {"512x65536", "512x65535", "1x33554432"}},
      {{"l2_norm"}, {"f32"}, {"first"}, {"112x64x512x512", "16x64x256x256", "1x1879048192"}},
      {{"position_layer_norm", "position_rms_norm"}, {"f16"}, {"first"}, {"16x512x128x128"}},
      {{"position_rms_norm"}, {"f32"}, {"first"}, {"112x64x512x512"}},
      {{"position_layer_norm+scale+shift", "position_layer_norm+residual+gate+scale+shift"},
       {"bf16"},
       {"last"},
       {"4x3072x4096"}},
      {{"instance_norm+residual", "group_norm:32+residual"},
       {"f32", "bf16"},
       {"first"},
       {"16x64x512x512"}},
      {{"instance_norm", "instance_norm+styles:32"}, {"f32"}, {"first"}, {"16x64x512x512"}},
      {{"instance_norm+style_tensor"},
       {"f32", "bf16"},
       {"first"},
       {"16x512x16x16", "16x512x32x32", "16x512x64x64", "16x64x512x512"}},
  };
  return *lines;
}

void AddCases(const Lines& lines, std::vector<Case>* suite) {
  for (const std::string& operation : lines.operations) {
    for (const std::string& dtype : lines.dtypes) {
      for (const std::string& layout : lines.layouts) {
        for (const std::string& shape : lines.shapes) {
          Case c;
          if (MakeCase(operation, dtype, layout, shape, &c).ok()) suite->push_back(std::move(c));
        }
      }
    }
  }
}

}  // namespace

std::vector<Case> FullSuite() {
  std::vector<Case> suite;
  for (const Lines& lines : PlainLines()) AddCases(lines, &suite);
  for (const Lines& lines : StageLines()) AddCases(lines, &suite);
  return suite;
}

}  // namespace normd::norm::bench
