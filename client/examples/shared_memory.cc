// Normalizes a tensor in memory that this process shares with a server on the same machine: the
// server reads it and writes the result in place, and only a short message passes between them.
//
//   normd --shared_memory=fd --shared_memory_listen=unix:///tmp/regions
//   shared_memory_example 127.0.0.1:8001 unix:///tmp/regions

#include <cstdint>
#include <cstdio>
#include <string>

#include "client/client.h"
#include "client/shared_region.h"

namespace {

using normd::client::Client;
using normd::client::SharedRegion;

constexpr std::int64_t kChannels = 64;
constexpr std::int64_t kSide = 128;
constexpr std::int64_t kElements = kChannels * kSide * kSide;
constexpr std::size_t kBytes = kElements * sizeof(float);

absl::Status Run(const std::string& server, const std::string& regions) {
  // One region for both tensors: x, then y. The server shares it until `region`, the request and
  // the response are all gone.
  const auto region = SharedRegion::Create(regions, 2 * kBytes);
  if (!region.ok()) return region.status();
  auto* const x = reinterpret_cast<float*>((*region)->data());
  for (std::int64_t i = 0; i < kElements; ++i) x[i] = static_cast<float>(i % 251);

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

  const auto client = Client::Create(server, {});
  if (!client.ok()) return client.status();
  const auto response = (*client)->Normalize(request);
  if (!response.ok()) return response.status();

  // The result follows x; response->outputs()[0].pieces() shows the same bytes.
  const float* const y = x + kElements;
  double sum = 0;
  for (std::int64_t i = 0; i < kSide * kSide; ++i) sum += y[i];
  std::printf("%s version %ld: the first channel's mean is now %.6f\n", response->model().c_str(),
              static_cast<long>(response->version()), sum / (kSide * kSide));
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "wanted: shared_memory_example SERVER REGIONS\n");
    return 2;
  }
  const absl::Status status = Run(argv[1], argv[2]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "shared_memory_example: %s\n", std::string(status.message()).c_str());
  return 1;
}
