// The file of a region that a client names: a POSIX shared memory object.

#ifndef NORMD_SERVER_REGIONS_NAMED_FILE_H_
#define NORMD_SERVER_REGIONS_NAMED_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/descriptor.h"

namespace normd {

struct SharedFile {
  Descriptor descriptor;
  bool writable = false;
};

// Opens the object of this key, in shm_open's form: one name, with or without a leading slash. It
// is a plain file directly below `folder`, which is /dev/shm except in tests, and begins with
// `prefix`. A link is never followed, and no opened file blocks or acts (a FIFO, a device). One
// that the server may not write is opened for reading.
//
// InvalidArgument for an invalid key; NotFound, without distinction, if it does not begin with the
// prefix, does not exist, is not a plain file or may not be read.
absl::StatusOr<SharedFile> OpenNamedFile(const std::string& folder, absl::string_view key,
                                         absl::string_view prefix);

}  // namespace normd

#endif  // NORMD_SERVER_REGIONS_NAMED_FILE_H_
