#include "kernels/bench/linear.h"

#include <charconv>
#include <limits>

#include "kernels/bench/text.h"

namespace normd::norm::bench {
namespace {

constexpr Precision kPrecisions[] = {Precision::kFloat32, Precision::kTf32, Precision::kBFloat16,
                                     Precision::kFloat32Strict};

Status ParsePrecision(const std::string& name, Precision* out) {
  std::string names;
  for (const Precision precision : kPrecisions) {
    names += names.empty() ? Name(precision) : std::string(", ") + Name(precision);
    if (name != Name(precision)) continue;
    *out = precision;
    return Status();
  }
  return InvalidArgument("--precisions: \"" + name + "\" is not one of " + names);
}

// NaN if nothing was measured.
double Measured(double value) {
  return value > 0 ? value : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

std::string LinearCase::shape() const {
  return std::to_string(samples) + "x" + std::to_string(in_features) + "x" +
         std::to_string(out_features);
}

double LinearCase::operations() const {
  return 2.0 * static_cast<double>(samples) * static_cast<double>(in_features) *
         static_cast<double>(out_features);
}

Status ParseLinearCase(const std::string& shape, const std::string& dtype,
                       const std::string& precision, LinearCase* out) {
  // Parsed through a case of the norms, so that types have the same names here.
  Case probe;
  for (Status status : {MakeCase("layer_norm", dtype, "first", "1x1", &probe),
                        ParsePrecision(precision, &out->precision)}) {
    if (!status.ok()) return status;
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
  return Format("%-12s %-9s %-14s %-18s %-10s %10s %10s %8s %8s %9s", "operation", "dtype",
                "precision", "shape", "strategy", "ms", "product ms", "ratio", "TFLOP/s",
                "max error");
}

std::string LinearTableLine(const LinearResult& result) {
  const LinearCase& c = result.measured;
  const LinearMeasurement& m = result.measurement;
  const std::string head = Format("%-12s %-9s %-14s %-18s ", "linear_norm", Name(c.dtype),
                                  Name(c.precision), c.shape().c_str());
  if (!result.status.ok()) return head + result.status.message();
  const auto cell = [](double value, const char* format, const char* absent) {
    return value > 0 ? Format(format, value) : std::string(absent);
  };
  return head + Format("%-10s %10.4f ", m.strategy.c_str(), m.layer_ms) +
         cell(m.product_ms, "%10.4f", "         -") + cell(m.ratio, " %8.3f", "        -") +
         Format(" %8.2f %9.2e", c.operations() / m.layer_ms / 1e9, m.max_error);
}

std::string LinearJson(const std::string& device, const std::vector<LinearResult>& results) {
  std::string out = "{\"device\": " + Quoted(device) + ",\n \"results\": [";
  for (const LinearResult& result : results) {
    const LinearCase& c = result.measured;
    const LinearMeasurement& m = result.measurement;
    out += &result == results.data() ? "\n  " : ",\n  ";
    out += "{\"op\": \"linear_norm\", \"dtype\": " + Quoted(Name(c.dtype)) +
           ", \"precision\": " + Quoted(Name(c.precision)) + ", \"shape\": " + Quoted(c.shape());
    if (!result.status.ok()) {
      out += ", \"error\": " + Quoted(result.status.message()) + "}";
      continue;
    }
    out += ", \"strategy\": " + Quoted(m.strategy) + ", \"layer_ms\": " + Number(m.layer_ms) +
           ", \"product_ms\": " + Number(Measured(m.product_ms)) +
           ", \"ratio_to_product\": " + Number(Measured(m.ratio)) +
           ", \"tflop_per_s\": " + Number(c.operations() / m.layer_ms / 1e9) +
           ", \"max_error\": " + Number(m.max_error) +
           ", \"checked_samples\": " + std::to_string(m.checked_samples) +
           ", \"repetitions\": " + std::to_string(m.repetitions) + "}";
  }
  return out + "\n]}\n";
}

}  // namespace normd::norm::bench
