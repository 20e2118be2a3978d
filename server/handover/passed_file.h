// The server's demands of a descriptor from a client, before it maps it.

#ifndef NORMD_SERVER_HANDOVER_PASSED_FILE_H_
#define NORMD_SERVER_HANDOVER_PASSED_FILE_H_

#include "absl/status/statusor.h"
#include "server/regions/region.h"

namespace normd {

// The whole file as a region, without owner and name. FailedPrecondition, with what came and what
// was wanted, unless it is memory (memfd_create) that is sealed against shrinking (F_SEAL_SHRINK),
// in pages of the usual size, and not empty. One that is open only for reading, or sealed against
// writing, is not writable.
absl::StatusOr<RegionFacts> FactsOfPassedFile(int file);

}  // namespace normd

#endif  // NORMD_SERVER_HANDOVER_PASSED_FILE_H_
