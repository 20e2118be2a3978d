#include "client/normload/shared_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "normd/v1/norm_service.pb.h"

namespace normd::load {
namespace {

// A region as on a device: at addresses that this process cannot read.
class FarRegion final : public client::Region {
 public:
  explicit FarRegion(std::size_t bytes)
      : Region("far", reinterpret_cast<std::byte*>(std::uintptr_t{4096}), bytes), bytes_(bytes) {}

  bool gone = false;  // Nothing is copied any more.

 private:
  std::size_t Offset(const std::byte* at) const {
    return reinterpret_cast<std::uintptr_t>(at) - reinterpret_cast<std::uintptr_t>(address());
  }
  absl::Status CopyIn(std::byte* to, absl::Span<const std::byte> from) const override {
    std::copy(from.begin(), from.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(Offset(to)));
    return absl::OkStatus();
  }
  absl::Status CopyOut(absl::Span<std::byte> to, const std::byte* from) const override {
    if (gone) return absl::UnavailableError("the device is gone");
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(Offset(from)), to.size(), to.begin());
    return absl::OkStatus();
  }

  mutable std::vector<std::byte> bytes_;
};

client::Tensor Filled(int byte) {
  client::Tensor tensor =
      client::Tensor::Allocate(norm::DType::kFloat32, Shape::Create({2, 3}).value()).value();
  std::fill(tensor.mutable_bytes().begin(), tensor.mutable_bytes().end(), std::byte(byte));
  return tensor;
}

class SharedSlotsTest : public ::testing::Test {
 protected:
  SharedSlotsTest() {
    client::NormalizeRequest request;
    request.model = "m";
    request.inputs = {Filled(9).named("x")};
    SharedSlotsOptions options;
    options.make = [this](std::size_t bytes) {
      region_ = std::make_shared<FarRegion>(bytes);
      return region_;
    };
    options.slots = 2;
    const std::vector<client::TensorSpec> outputs = {Filled(0).spec("y"), Filled(0).spec("z")};
    slots_ = SharedSlots::Create(request, outputs, options).value();
  }
  const client::SharedOutput& Place(std::size_t slot, std::size_t output) const {
    return slots_->request(slot).shared()->outputs[output];
  }
  // The server has written the output.
  void Write(std::size_t slot, std::size_t output, int byte) const {
    const auto offset = static_cast<std::size_t>(Place(slot, output).region_offset);
    ASSERT_TRUE(region_->Write(offset, Filled(byte).bytes()).ok());
  }
  // Its response: y lies in the slot, z as well or in the message.
  client::NormalizeResponse Respond(std::size_t slot, bool z_in_message) const {
    v1::NormalizeResponse message;
    for (std::size_t k = 0; k < 2; ++k) {
      v1::Tensor& tensor = *message.add_outputs();
      tensor.set_name(Place(slot, k).name);
      tensor.set_dtype(v1::FLOAT32);
      tensor.add_shape(2);
      tensor.add_shape(3);
      if (k == 1 && z_in_message) {
        tensor.set_data(std::string(24, 7));
      } else {
        tensor.mutable_shared_memory()->set_region("far");
        tensor.mutable_shared_memory()->set_offset(Place(slot, k).region_offset);
        tensor.mutable_shared_memory()->set_byte_size(24);
      }
    }
    const grpc::Slice slice(message.SerializeAsString());
    return client::NormalizeResponse::Decode(grpc::ByteBuffer(&slice, 1), client::Protocol::kNormd,
                                             slots_->request(slot).shared())
        .value();
  }
  static void ExpectFilled(const client::Tensor& tensor, int byte) {
    EXPECT_EQ(tensor.bytes(), Filled(byte).bytes());
  }

  std::shared_ptr<FarRegion> region_;
  std::unique_ptr<SharedSlots> slots_;
};

TEST_F(SharedSlotsTest, OutputsThatThisProcessCannotReadAreCopiedOutOfTheirSlot) {
  for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
    Write(slot, 0, 1 + static_cast<int>(slot));
    Write(slot, 1, 3 + static_cast<int>(slot));
  }
  for (const std::size_t slot : {std::size_t{0}, std::size_t{1}}) {
    const auto outputs = slots_->ReadOutputs(slot, Respond(slot, /*z_in_message=*/false));
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    ASSERT_EQ(outputs->size(), 2u);
    ExpectFilled((*outputs)[0], 1 + static_cast<int>(slot));
    ExpectFilled((*outputs)[1], 3 + static_cast<int>(slot));
  }
}

TEST_F(SharedSlotsTest, AnOutputThatCameInTheMessageIsReadThere) {
  Write(0, 0, 1);
  const auto outputs = slots_->ReadOutputs(0, Respond(0, /*z_in_message=*/true));
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  ExpectFilled((*outputs)[0], 1);
  ExpectFilled((*outputs)[1], 7);
}

TEST_F(SharedSlotsTest, WhatCannotBeCopiedIsAnErrorAndNoOutput) {
  region_->gone = true;
  const auto outputs = slots_->ReadOutputs(0, Respond(0, /*z_in_message=*/true));
  EXPECT_EQ(outputs.status(), absl::UnavailableError("the device is gone"));
}

}  // namespace
}  // namespace normd::load
