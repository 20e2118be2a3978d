// The header of NumPy's .npy format.
// Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1.0, 2.0
// and 3.0.

#ifndef NORMD_CLIENT_TENSOR_NPY_HEADER_H_
#define NORMD_CLIENT_TENSOR_NPY_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/shape.h"
#include "kernels/types.h"

namespace normd::client {

// A longer header is refused; NumPy's own are below 200 bytes for these types.
inline constexpr std::size_t kMaxNpyHeaderBytes = 65536;

struct NpyHeader {
  norm::DType dtype = norm::DType::kFloat32;
  Shape shape;
  std::int64_t data_offset = 0;  // The elements' first byte in the file.
  bool big_endian = false;       // Each element's first byte is its highest.
  bool fortran_order = false;    // The first dimension varies fastest.
};

// Written here because the libraries that read .npy trust a header's claims. Parses the beginning
// of a file. `prefix` is the file's first bytes: all of it, or at least kMaxNpyHeaderBytes.
// Types: those of wire/data_type.h under any NumPy name ('<f4', '>f4', '=f4', 'f4', 'float32',
// 'f'). For bfloat16, for which the format has no name, those of ml_dtypes ('<V2', also as '|V2')
// and the name 'bfloat16'. Integers may end in L, as Python 2 writes them.
// InvalidArgument names the field for anything else: other types, with the line of Python that
// converts them; a header that is cut short or is not the dictionary of the format. Reads nothing
// but `prefix` and allocates nothing by its claims.
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view prefix);

// The bytes before the elements, padded to a multiple of 64: version 1.0. bfloat16 is written as
// '<V2'; NumPy reads it as two raw bytes per element, and `.view(ml_dtypes.bfloat16)` gives the
// numbers.
std::string MakeNpyHeader(norm::DType dtype, const Shape& shape);

}  // namespace normd::client

#endif  // NORMD_CLIENT_TENSOR_NPY_HEADER_H_
