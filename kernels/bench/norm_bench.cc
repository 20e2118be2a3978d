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

void Explain(Device* device, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    std::string text;
    const Status status = device->Explain(c, &text);
    std::printf("%s: %s\n", c.name().c_str(),
                status.ok() ? text.c_str() : status.message().c_str());
  }
}

// These return false if a case could not run.
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

bool MeasureAllLinear(Device* device, const std::vector<LinearCase>& cases,
                      std::vector<LinearResult>* results) {
  bool complete = true;
  std::printf("%s\n", LinearTableHeader().c_str());
  for (const LinearCase& c : cases) {
    LinearResult result;
    result.measured = c;
    result.status = device->MeasureLinear(c, &result.measurement);
    complete = complete && result.status.ok();
    std::printf("%s\n", LinearTableLine(result).c_str());
    std::fflush(stdout);
    results->push_back(std::move(result));
  }
  return complete;
}

bool WriteJson(const std::string& path, const std::string& json) {
  if (path.empty()) return true;
  std::ofstream file(path);
  file << json;
  file.close();
  if (!file) std::fprintf(stderr, "norm_bench: --json: cannot write %s\n", path.c_str());
  return bool{file};
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
  if (!options.linear_cases.empty()) {
    std::vector<LinearResult> results;
    const bool complete = MeasureAllLinear(device.get(), options.linear_cases, &results);
    const std::string json = LinearJson(device->Description(), results);
    return WriteJson(options.json_path, json) && complete ? 0 : 1;
  }
  if (options.explain) {
    Explain(device.get(), options.cases);
    return 0;
  }
  std::vector<Result> results;
  const bool complete = MeasureAll(device.get(), options.cases, &results);
  const std::string json = Json(device->Description(), results);
  return WriteJson(options.json_path, json) && complete ? 0 : 1;
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
