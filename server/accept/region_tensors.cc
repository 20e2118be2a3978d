#include "server/accept/region_tensors.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/printable.h"
#include "operations/kernel_program.h"

namespace normd {
namespace {

constexpr std::size_t kMaxShown = 64;  // Bytes of a region's name that an error repeats.

// A part that was found.
struct Part {
  std::shared_ptr<const Region> region;
  MutableBytes bytes;
  MemoryPlace place;
  FileRange file;
};

std::string Quoted(absl::string_view region) {
  return absl::StrCat("region \"", Printable(region, kMaxShown), "\"");
}

absl::Status Broken(const Region& region) {
  return absl::FailedPreconditionError(
      absl::StrCat(Quoted(region.facts().name),
                   ": its memory was taken away, by a file made shorter or a file system without "
                   "room; wanted that it is registered anew"));
}

absl::StatusOr<Part> Find(const RegionScope& scope, const RegionReference& reference) {
  if (scope.registry == nullptr) {
    return absl::UnimplementedError(
        "shared memory is switched off on this server (--shared_memory switches it on)");
  }
  if (reference.offset < 0 || reference.bytes < 0) {
    const bool offset = reference.offset < 0;
    return absl::InvalidArgumentError(absl::StrCat(offset ? "offset " : "byte_size ",
                                                   offset ? reference.offset : reference.bytes,
                                                   ", wanted 0 or more"));
  }
  auto region = scope.registry->Find(scope.owner, reference.region);
  if (!region.ok()) return region.status();
  if ((*region)->broken()) return Broken(**region);
  const std::optional<MutableBytes> bytes = (*region)->Part(reference.offset, reference.bytes);
  if (!bytes.has_value()) {
    return absl::OutOfRangeError(absl::StrCat(
        Quoted(reference.region), ": byte_size ", reference.bytes, " from offset ",
        reference.offset, ", wanted a part of its ", (*region)->facts().bytes, " bytes"));
  }
  FileRange file = (*region)->PartOfFile(reference.offset, reference.bytes);
  const MemoryPlace place = (*region)->place();
  return Part{*std::move(region), *bytes, place, file};
}

// Checks an input's or output's alignment.
absl::Status CheckAligned(const RegionReference& reference, const Part& part, norm::DType dtype,
                          const char* what) {
  if (reinterpret_cast<std::uintptr_t>(part.bytes.data()) % norm::SizeOf(dtype) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(Quoted(reference.region), ": offset ",
                                                 reference.offset, ", wanted the ", what,
                                                 " aligned to ", norm::SizeOf(dtype), " bytes"));
}

absl::Status CheckOutput(const RegionReference& reference, const Part& part,
                         const TensorSize& wanted) {
  if (!part.region->facts().writable) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(reference.region),
                     " may only be read, wanted one for an output that "
                     "the server may write"));
  }
  if (reference.bytes < wanted.bytes) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(reference.region), ": byte_size ",
                                                   reference.bytes, ", wanted at least the ",
                                                   wanted.bytes, " of the output"));
  }
  return CheckAligned(reference, part, wanted.dtype, "output");
}

// Finds one request's tensors.
class Search {
 public:
  Search(const RegionScope& scope, const Model& model, const RequestDescription& request)
      : scope_(scope), model_(model), request_(request) {}

  absl::Status TakeInputs(const CheckedInputs& checked) {
    for (std::size_t k = 0; k < checked.places.size(); ++k) {
      const auto& reference = request_.inputs[checked.places[k]].region;
      if (!reference.has_value()) continue;
      absl::StatusOr<Part> part = Find(scope_, *reference);
      if (!part.ok()) return Of("inputs", checked.places[k], part.status());
      absl::Status status = TakeInput(*reference, k, checked.geometry.inputs[k].dtype, *part);
      if (!status.ok()) return Of("inputs", checked.places[k], status);
      found_.inputs.resize(checked.places.size());
      found_.inputs[k] = {part->bytes, part->place};
      inputs_.emplace_back(k, *std::move(part));
    }
    return absl::OkStatus();
  }

  absl::Status TakeOutputs(const CheckedInputs& checked, PlacedOutputs& placed) {
    const std::size_t count = checked.geometry.outputs.size();
    for (std::size_t i = 0; i < request_.outputs.size(); ++i) {
      const auto& reference = request_.outputs[i].region;
      if (!reference.has_value()) continue;
      const std::size_t k = placed.places[i];
      absl::StatusOr<Part> part = TakeOutput(*reference, k, checked.geometry.outputs[k]);
      if (!part.ok()) return Of("outputs", i, part.status());
      placed.memory.resize(count);
      placed.memory[k] = {part->bytes, part->place};
      found_.outputs.resize(count);
      found_.outputs[k] = *reference;
      found_.outputs[k]->bytes = static_cast<std::int64_t>(part->bytes.size());
      SumOf(*part).output_bytes += found_.outputs[k]->bytes;
      outputs_.push_back(*std::move(part));
    }
    return absl::OkStatus();
  }

  // The bytes outside device memory, which no lane holds.
  absl::Status CheckHostBytes(const Geometry& geometry) const {
    return CheckSize({geometry.InputBytes() - found_.on_device.input_bytes,
                      geometry.OutputBytes() - found_.on_device.output_bytes},
                     scope_.max_host_bytes);
  }

  RegionTensors Found() && {
    for (auto& [k, part] : inputs_) found_.regions.push_back(std::move(part.region));
    for (Part& part : outputs_) found_.regions.push_back(std::move(part.region));
    return std::move(found_);
  }

 private:
  RegionTensors::Sum& SumOf(const Part& part) {
    return part.place.OnHost() ? found_.on_host : found_.on_device;
  }

  // The host can copy an unaligned input, but not on a device.
  absl::Status TakeInput(const RegionReference& reference, std::size_t k, norm::DType dtype,
                         const Part& part) {
    SumOf(part).input_bytes += reference.bytes;
    if (part.place.OnHost()) return absl::OkStatus();
    if (model_.inputs()[k].values != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(reference.region),
                       ": memory of a device, wanted indexes in memory "
                       "of the host, where they can be checked"));
    }
    if (absl::Status status = CheckAligned(reference, part, dtype, "input"); !status.ok()) {
      return status;
    }
    return TakeDevice(part);
  }

  // A single device computes a request.
  absl::Status TakeDevice(const Part& part) {
    const MemoryPlace& place = part.place;
    if (place.OnHost()) return absl::OkStatus();
    if (found_.device.value_or(place.device) == place.device) {
      found_.device = place.device;
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(Quoted(part.region->facts().name), ": ",
                                                   place.ToString(), ", wanted that of device ",
                                                   *found_.device, ", where another tensor lies"));
  }

  static absl::Status Of(const char* list, std::size_t i, const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat(list, "[", i, "].shared_memory: ", status.message()));
  }

  // The part for the model's output k, cut to its size.
  absl::StatusOr<Part> TakeOutput(const RegionReference& reference, std::size_t k,
                                  const TensorSize& wanted) {
    absl::StatusOr<Part> part = Find(scope_, reference);
    if (!part.ok()) return part.status();
    if (absl::Status status = CheckOutput(reference, *part, wanted); !status.ok()) return status;
    if (absl::Status status = TakeDevice(*part); !status.ok()) return status;
    part->bytes = part->bytes.first(static_cast<std::size_t>(wanted.bytes));
    part->file.end = part->file.begin + wanted.bytes;
    if (absl::Status status = CheckAlone(*part, k); !status.ok()) return status;
    return part;
  }

  // Compared by file, not by address: one file may be mapped twice. But an output that overwrites
  // an input has its address: kernels read and write in place by one pointer. It is where the input
  // was found, because the region's pages may have been locked since.
  absl::Status CheckAlone(Part& output, std::size_t k) const {
    for (const auto& [input, part] : inputs_) {
      if (!part.file.Overlaps(output.file)) continue;
      const bool same =
          part.bytes.data() == output.bytes.data() && part.bytes.size() == output.bytes.size();
      if (same && OverwritableInput(model_.program(), k) == input) {
        output.place = part.place;
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "overlaps input \"", model_.inputs()[input].name,
          "\", wanted memory of its own or exactly that of the input it may overwrite, in the same "
          "region"));
    }
    for (const Part& other : outputs_) {
      if (!other.file.Overlaps(output.file)) continue;
      return absl::InvalidArgumentError("overlaps another output, wanted memory of its own");
    }
    return absl::OkStatus();
  }

  const RegionScope& scope_;
  const Model& model_;
  const RequestDescription& request_;
  RegionTensors found_;
  absl::InlinedVector<std::pair<std::size_t, Part>, kInlinedInputs> inputs_;
  absl::InlinedVector<Part, kInlinedOutputs> outputs_;
};

}  // namespace

bool NamesRegions(const RequestDescription& request) {
  for (const InputDescription& input : request.inputs) {
    if (input.region.has_value()) return true;
  }
  for (const WantedOutput& output : request.outputs) {
    if (output.region.has_value()) return true;
  }
  return false;
}

absl::Status RegionTensors::CheckWhole() const {
  for (const auto& region : regions) {
    if (region->broken()) return Broken(*region);
  }
  return absl::OkStatus();
}

absl::StatusOr<RegionTensors> FindRegionTensors(const RegionScope& scope, const Model& model,
                                                const RequestDescription& request,
                                                const CheckedInputs& inputs,
                                                PlacedOutputs& outputs) {
  if (!NamesRegions(request)) return RegionTensors();
  Search search(scope, model, request);
  if (absl::Status status = search.TakeInputs(inputs); !status.ok()) return status;
  if (absl::Status status = search.TakeOutputs(inputs, outputs); !status.ok()) return status;
  if (absl::Status status = search.CheckHostBytes(inputs.geometry); !status.ok()) return status;
  return std::move(search).Found();
}

absl::Status CopyIndexes(const Model& model, RegionTensors& tensors) {
  for (std::size_t k = 0; k < tensors.inputs.size(); ++k) {
    const TensorSignature& input = model.inputs()[k];
    const ConstBytes shared = tensors.inputs[k].bytes;
    if (input.values == 0 || shared.empty()) continue;
    auto copy = std::make_unique_for_overwrite<std::byte[]>(shared.size());
    std::copy(shared.begin(), shared.end(), copy.get());
    tensors.inputs[k] = {MutableBytes(copy.get(), shared.size()), MemoryPlace()};
    tensors.copies.push_back(std::move(copy));
    const ConstBytes views[] = {tensors.inputs[k].bytes};
    if (absl::Status status = CheckIndexes(input, views, 0); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace normd
