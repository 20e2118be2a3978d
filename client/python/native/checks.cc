#include "client/python/native/checks.h"

#include <stdexcept>

namespace normd::torch_ops {
namespace {

std::string DeviceText(const Tensor& tensor) {
  const std::int32_t type = tensor.device_type();
  if (type == Torch().device_type_cpu()) return "cpu";
  const std::string index = std::to_string(tensor.device_index());
  if (type == Torch().device_type_cuda()) return "cuda:" + index;
  return "device type " + std::to_string(type) + ":" + index;
}

}  // namespace

void Refuse(const char* name, const std::string& argument, const std::string& came,
            const std::string& wanted) {
  throw std::runtime_error(std::string("normd::") + name + ": " + argument + ": " + came +
                           ", wanted " + wanted);
}

void CheckCodes(const char* name, const Arguments& arguments) {
  if (arguments.wrong_name() == nullptr) return;
  Refuse(name, arguments.wrong_name(), "unknown value " + std::to_string(arguments.wrong_code()),
         "a number of kernels/norm_c.h");
}

void CheckTensors(const char* name, std::span<const NamedTensor> tensors) {
  const NamedTensor& first = tensors.front();
  const bool has_gradients = Torch().grad_mode_is_enabled();
  for (const NamedTensor& each : tensors) {
    if (!*each.tensor) continue;
    if (!each.tensor->SameDevice(*first.tensor)) {
      Refuse(name, std::string(each.name) + ".device", DeviceText(*each.tensor),
             DeviceText(*first.tensor) + " as " + first.name + "'s");
    }
    if (has_gradients && each.tensor->requires_grad()) {
      Refuse(name, each.name, "requires a gradient",
             "a call under torch.no_grad() or torch.inference_mode(), or detached tensors: the "
             "operator has no gradient");
    }
  }
}

}  // namespace normd::torch_ops
