#include "tests/server/rpc/stream_client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

namespace normd::testing {

StreamClient::StreamClient(v1::NormService::Stub& stub,
                           const std::function<void(grpc::ClientContext&)>& configure) {
  if (configure) configure(context_);
  stream_ = stub.NormalizeStream(&context_);
}

StreamClient::~StreamClient() {
  if (status_.has_value()) return;
  Cancel();
  Finish();
}

bool StreamClient::SendHeader(const v1::NormalizeRequest& request) {
  v1::NormalizeStreamRequest message;
  *message.mutable_header() = request;
  for (v1::Tensor& input : *message.mutable_header()->mutable_inputs()) input.clear_data();
  return Send(message);
}

bool StreamClient::SendChunk(absl::string_view bytes) {
  v1::NormalizeStreamRequest message;
  message.set_chunk(std::string(bytes));
  return Send(message);
}

std::optional<v1::NormalizeStreamResponse> StreamClient::Read() {
  v1::NormalizeStreamResponse message;
  if (!stream_->Read(&message)) return std::nullopt;
  return message;
}

grpc::Status StreamClient::Finish() {
  if (!status_.has_value()) {
    while (Read()) {
    }
    status_ = stream_->Finish();
  }
  return *status_;
}

std::string StreamBytes(const v1::NormalizeRequest& request) {
  if (request.inputs_size() == 1) return request.inputs(0).data();
  std::string bytes;
  for (std::int64_t sample = 0; sample < request.inputs(0).shape(0); ++sample) {
    for (const v1::Tensor& input : request.inputs()) {
      const std::size_t size = input.data().size() / static_cast<std::size_t>(input.shape(0));
      bytes += input.data().substr(static_cast<std::size_t>(sample) * size, size);
    }
  }
  return bytes;
}

StreamResult NormalizeInChunks(v1::NormService::Stub& stub, const v1::NormalizeRequest& request,
                               const std::function<std::size_t()>& next_chunk) {
  StreamClient client(stub);
  std::thread writer([&] {
    const std::string bytes = StreamBytes(request);
    absl::string_view left = bytes;
    if (!client.SendHeader(request)) return;
    while (!left.empty()) {
      const std::size_t size = std::min(next_chunk(), left.size());
      if (!client.SendChunk(left.substr(0, size))) return;
      left.remove_prefix(size);
    }
    client.HalfClose();
  });
  StreamResult result;
  while (const auto message = client.Read()) {
    EXPECT_FALSE(result.trailer.has_value()) << "a message after the trailer";
    switch (message->part_case()) {
      case v1::NormalizeStreamResponse::kHeader:
        EXPECT_FALSE(result.header.has_value()) << "two headers";
        result.header = message->header();
        break;
      case v1::NormalizeStreamResponse::kChunk:
        EXPECT_TRUE(result.header.has_value()) << "a chunk before the header";
        result.data += message->chunk();
        break;
      case v1::NormalizeStreamResponse::kTrailer: result.trailer = message->trailer(); break;
      default: ADD_FAILURE() << "a message without a part";
    }
  }
  writer.join();
  result.status = client.Finish();
  return result;
}

}  // namespace normd::testing
