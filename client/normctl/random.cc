// `normctl random`: a tensor for trying the service.

#include "client/tensor/random.h"
#include "absl/strings/str_cat.h"
#include "client/normctl/command.h"
#include "client/tensor/npy.h"
#include "nlohmann/json.hpp"

namespace normd::client {
namespace {

class RandomCommand final : public Command {
 public:
  const char* name() const override { return "random"; }
  const char* arguments() const override { return "OUT.npy"; }
  const char* summary() const override { return "writes a random tensor; needs no server"; }
  int argument_count() const override { return 1; }

  void AddFlags(FlagSet& flags) override {
    flags.Add("shape", &shape_, "DIMS", "Dimensions, such as 2x64x512x512.");
    flags.Add("dtype", &dtype_, "TYPE", "float32, float64, float16 or bfloat16.");
    flags.Add("low", &low_, "X", "Elements are uniform in [low, high).");
    flags.Add("high", &high_, "X", "See --low.");
    flags.Add("seed", &seed_, "N", "The same seed gives the same tensor everywhere.");
  }
  absl::Status Check(absl::Span<const std::string> /*arguments*/) const override {
    if (absl::Status s = ParseDType(dtype_).status(); !s.ok()) return Named(s);
    return Named(ParseShape(shape_).status());
  }

  absl::Status Run(const Context& context) override {
    const std::string& path = context.arguments[0];
    const absl::StatusOr<Tensor> tensor =
        RandomTensor(*ParseDType(dtype_), *ParseShape(shape_), low_, high_, seed_);
    if (!tensor.ok()) return tensor.status();
    if (absl::Status written = WriteNpy(path, tensor->view()); !written.ok()) return written;
    if (context.json) {
      *context.out << nlohmann::json{{"path", path}, {"bytes", tensor->bytes().size()}} << "\n";
    } else {
      *context.out << path << ": " << norm::Name(tensor->dtype()) << " "
                   << tensor->shape().ToString() << "\n";
    }
    return absl::OkStatus();
  }

 private:
  // The parsers' messages begin with the flag's name.
  static absl::Status Named(const absl::Status& status) {
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat("--", status.message()));
  }

  std::string shape_ = "2x64x512x512";
  std::string dtype_ = "float32";
  double low_ = 0;
  double high_ = 1;
  std::uint64_t seed_ = 1;
};

}  // namespace

std::unique_ptr<Command> MakeRandomCommand() { return std::make_unique<RandomCommand>(); }

}  // namespace normd::client
