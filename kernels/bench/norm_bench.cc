// The kernels' benchmark: see --help and README.md beside this file.

#include <cstdio>
#include <exception>
#include <fstream>

#include "kernels/bench/options.h"
#include "kernels/bench/report.h"

namespace normd::norm::bench {
namespace {

Status OpenDevice(const Options& options, std::unique_ptr<Device>* device) {
  if (options.device == "cpu") return MakeCpuDevice(options.settings, device);
  if (options.device == "cuda") return MakeCudaDevice(options.settings, device);
  return InvalidArgument("--device: \"" + options.device + "\", wanted cpu or cuda");
}

void Explain(const Device& device, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    std::string text;
    const Status status = device.Explain(c, &text);
    std::printf("%s: %s\n", c.name().c_str(),
                status.ok() ? text.c_str() : status.message().c_str());
  }
}

// Returns false if a case could not run.
bool MeasureAll(Device* device, const std::vector<Case>& cases, std::vector<Result>* results) {
  bool complete = true;
  std::printf("%s\n", TableHeader().c_str());
  for (const Case& c : cases) {
    Result result;
    result.measured = c;
    result.status = device->Measure(&result.measured, &result.measurement);
    complete = complete && result.status.ok();
    std::printf("%s\n", TableLine(result).c_str());
    std::fflush(stdout);
    results->push_back(std::move(result));
  }
  return complete;
}

int MeasureLinearCases(const Options& options) {
  bool complete = true;
  std::printf("%s\n", LinearTableHeader().c_str());
  for (const LinearCase& c : options.linear_cases) {
    LinearMeasurement measurement;
    const Status status = MeasureLinear(options.settings, c, &measurement);
    complete = complete && status.ok();
    std::printf("%s\n", LinearTableLine(c, measurement, status).c_str());
    std::fflush(stdout);
  }
  return complete ? 0 : 1;
}

int Run(const std::vector<std::string>& arguments) {
  Options options;
  std::unique_ptr<Device> device;
  Status status = ParseOptions(arguments, &options);
  if (status.ok() && !options.help) status = OpenDevice(options, &device);
  if (!status.ok()) {
    std::fprintf(stderr, "norm_bench: %s\n", status.message().c_str());
    return 2;
  }
  if (options.help) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  std::printf("%s\n", device->Description().c_str());
  if (!options.linear_cases.empty()) return MeasureLinearCases(options);
  if (options.explain) {
    Explain(*device, options.cases);
    return 0;
  }
  std::vector<Result> results;
  const bool complete = MeasureAll(device.get(), options.cases, &results);
  if (!options.json_path.empty()) {
    std::ofstream file(options.json_path);
    file << Json(device->Description(), results);
    file.close();
    if (!file) {
      std::fprintf(stderr, "norm_bench: --json: cannot write %s\n", options.json_path.c_str());
      return 1;
    }
  }
  return complete ? 0 : 1;
}

}  // namespace
}  // namespace normd::norm::bench

int main(int argc, char** argv) {
  try {
    return normd::norm::bench::Run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "norm_bench: %s\n", error.what());
    return 1;
  }
}
