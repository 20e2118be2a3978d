#include "server/handover/passed_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <utility>

namespace normd {

absl::StatusOr<RegionFacts> FactsOfPassedFile(int file) {
  // Only memory answers this.
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0) {
    return absl::FailedPreconditionError(
        "descriptor: no memory of memfd_create, wanted one that can be sealed");
  }
  if ((seals & F_SEAL_SHRINK) == 0) {
    return absl::FailedPreconditionError(
        "descriptor: memory that can be made shorter, wanted it sealed with F_SEAL_SHRINK");
  }
  struct statfs system = {};
  struct stat found = {};
  if (fstatfs(file, &system) != 0 || fstat(file, &found) != 0 || system.f_type == HUGETLBFS_MAGIC) {
    return absl::FailedPreconditionError(
        "descriptor: memory in pages of another size, wanted memfd_create without MFD_HUGETLB");
  }
  if (found.st_size < 1) {
    return absl::FailedPreconditionError("descriptor: memory of 0 bytes, wanted at least 1");
  }
  const int mode = fcntl(file, F_GETFL);
  if (mode < 0 || (mode & O_ACCMODE) == O_WRONLY || (mode & O_PATH) != 0) {
    return absl::FailedPreconditionError("descriptor: cannot be read, wanted it open for reading");
  }
  RegionFacts facts;
  facts.kind = RegionKind::kDescriptor;
  facts.bytes = found.st_size;
  facts.writable = (mode & O_ACCMODE) == O_RDWR && (seals & F_SEAL_WRITE) == 0 &&
                   (seals & F_SEAL_FUTURE_WRITE) == 0;
  return facts;
}

}  // namespace normd
