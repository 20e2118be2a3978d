// Normalizes a tensor in GPU memory that this process shares with a server on the same machine: the
// server's kernels read it and write the result in place.
//
//   normd --shared_memory_cuda
//   cuda_memory_example 127.0.0.1:8001

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/device_region.h"

namespace {

using normd::client::Client;
using normd::client::DeviceRegion;

constexpr std::int64_t kChannels = 64;
constexpr std::int64_t kSide = 128;
constexpr std::int64_t kElements = kChannels * kSide * kSide;
constexpr std::size_t kBytes = kElements * sizeof(float);

absl::Status Run(const std::string& server) {
  auto created = Client::Create(server, {});
  if (!created.ok()) return created.status();
  const std::shared_ptr<Client> client = *std::move(created);

  // Memory of device 0 for both tensors: x, then y. DeviceRegion::Register shares memory that the
  // caller already has; it takes its cudaIpcMemHandle_t.
  const auto region = DeviceRegion::Allocate(client, 0, 2 * kBytes);
  if (!region.ok()) return region.status();
  std::vector<float> x(kElements);
  for (std::int64_t i = 0; i < kElements; ++i) x[i] = static_cast<float>(i % 251);
  absl::Status status = (*region)->Write(0, {reinterpret_cast<const std::byte*>(x.data()), kBytes});
  if (!status.ok()) return status;

  const auto shape = normd::Shape::Create({1, kChannels, kSide, kSide});
  if (!shape.ok()) return shape.status();
  auto input = (*region)->Input("x", normd::norm::DType::kFloat32, *shape);
  auto output = (*region)->Output("y", kBytes, kBytes);
  if (!input.ok()) return input.status();
  if (!output.ok()) return output.status();
  normd::client::NormalizeRequest request;
  request.model = "instance_norm_64";
  request.inputs.push_back(*std::move(input));
  request.shared_outputs.push_back(*std::move(output));
  const auto response = client->Normalize(request);
  if (!response.ok()) return response.status();

  // The result lies on the device, which the host cannot read: it is copied here.
  std::vector<float> y(kSide * kSide);
  status =
      (*region)->Read(kBytes, {reinterpret_cast<std::byte*>(y.data()), y.size() * sizeof(float)});
  if (!status.ok()) return status;
  double sum = 0;
  for (const float value : y) sum += value;
  std::printf("%s version %ld: the first channel's mean is now %.6f\n", response->model().c_str(),
              static_cast<long>(response->version()), sum / static_cast<double>(y.size()));
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "wanted: cuda_memory_example SERVER\n");
    return 2;
  }
  const absl::Status status = Run(argv[1]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "cuda_memory_example: %s\n", std::string(status.message()).c_str());
  return 1;
}
