#include "client/verify/reference_operation.h"

#include "absl/strings/str_cat.h"

namespace normd::client {

absl::StatusOr<norm::ParamVector> ReferenceParameters::Find(const std::string& name,
                                                            std::int64_t elements) const {
  const std::string in_file = NameInFile(name);
  const auto it = tensors_.find(in_file);
  if (it == tensors_.end()) {
    return absl::InvalidArgumentError(absl::StrCat(in_file, ": not among the parameters"));
  }
  const Tensor& tensor = it->second;
  if (tensor.shape().elements() != elements) {
    return absl::InvalidArgumentError(absl::StrCat(in_file, ": shape ", tensor.shape().ToString(),
                                                   ", wanted ", elements, " elements"));
  }
  return norm::ParamVector{tensor.bytes().data(), tensor.dtype()};
}

std::string ReferenceParameters::NameInFile(const std::string& name) const {
  const auto named = names_.find(name);
  return prefix_ + (named == names_.end() ? name : named->second);
}

}  // namespace normd::client
