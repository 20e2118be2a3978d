// What the system lets this process have.

#ifndef NORMD_SERVER_NET_PROCESS_LIMITS_H_
#define NORMD_SERVER_NET_PROCESS_LIMITS_H_

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "base/descriptor.h"

namespace normd {

// Raises the soft limit of open descriptors to the hard one. Returns the limit then in force.
std::int64_t RaiseDescriptorLimit();
// How many descriptors are open now.
std::int64_t OpenDescriptors();
// ResourceExhausted unless the process may open this many more descriptors, by the hard limit.
absl::Status CheckDescriptorsLeft(std::int64_t wanted);
// Owns the descriptor that epoll_create1, eventfd or dup returned. Throws std::system_error, by
// errno, if the call failed.
Descriptor Opened(int fd);

// How many further mappings the process may have (vm.max_map_count), beside those of now.
std::int64_t MappingsLeft();

inline constexpr std::int64_t kNoMemoryLimit = std::numeric_limits<std::int64_t>::max();

// How many bytes the process may still take, by RLIMIT_AS, RLIMIT_DATA and the limits of its
// control groups (version 1 and 2); kNoMemoryLimit where there is none. The machine's memory is no
// limit.
std::int64_t MemoryLeft();

// How many cores' time the control groups (version 1 and 2) let the process have, rounded up; 0
// where they set no limit. `root` is where /proc and /sys are.
int CoresOfControlGroups(const std::string& root = "");

// Where limits count memory that is only set aside (RLIMIT_AS, RLIMIT_DATA), sets little aside from
// here on: small stacks and, where little is left, one heap. Returns what the threads that a server
// starts will take of those limits; 0 without them. Before the threads start.
std::int64_t SetLittleAside();

// What the heap has handed out, and was not given back; 0 where it cannot be known (sanitizers).
// Takes each arena's lock for a look at its free pieces.
std::int64_t HeapBytes();

}  // namespace normd

#endif  // NORMD_SERVER_NET_PROCESS_LIMITS_H_
