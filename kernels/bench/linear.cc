#include "kernels/bench/linear.h"

#include <charconv>
#include <cstdio>

namespace normd::norm::bench {

std::string LinearCase::shape() const {
  return std::to_string(samples) + "x" + std::to_string(in_features) + "x" +
         std::to_string(out_features);
}

Status ParseLinearCase(const std::string& shape, const std::string& dtype, LinearCase* out) {
  // Parsed through a case of the norms, so that types have the same names here.
  Case probe;
  if (Status status = MakeCase("layer_norm", dtype, "first", "1x1", &probe); !status.ok()) {
    return status;
  }
  out->dtype = probe.spec.dtype;
  const char* at = shape.data();
  const char* end = at + shape.size();
  for (std::int64_t* value : {&out->samples, &out->in_features, &out->out_features}) {
    const auto [stop, error] = std::from_chars(at, end, *value);
    const bool last = value == &out->out_features;
    if (error != std::errc() || *value < 1 || (last ? stop != end : stop == end || *stop != 'x')) {
      return InvalidArgument("--linear: \"" + shape + "\", wanted samples x in x out");
    }
    at = last ? stop : stop + 1;
  }
  return Status();
}

std::string LinearTableHeader() {
  char text[160];
  std::snprintf(text, sizeof(text), "%-12s %-9s %-18s %10s %10s %8s %9s", "operation", "dtype",
                "shape", "ms", "product ms", "ratio", "max error");
  return text;
}

std::string LinearTableLine(const LinearCase& c, const LinearMeasurement& m, const Status& status) {
  char text[160];
  std::snprintf(text, sizeof(text), "%-12s %-9s %-18s ", "linear_norm", Name(c.dtype),
                c.shape().c_str());
  if (!status.ok()) return text + status.message();
  const std::string head = text;
  std::snprintf(text, sizeof(text), "%10.4f %10.4f %8.3f %9.2e", m.layer_ms, m.product_ms, m.ratio,
                m.max_error);
  return head + text;
}

}  // namespace normd::norm::bench
