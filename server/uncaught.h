// What becomes of exceptions that nobody catches.

#ifndef NORMD_SERVER_UNCAUGHT_H_
#define NORMD_SERVER_UNCAUGHT_H_

namespace normd {

// From here on the process ends with a line on stderr: with exit code 1 where the system gives no
// thread or no memory, and otherwise with a core, as such an exception is a fault of ours.
void EndWithAMessage();

}  // namespace normd

#endif  // NORMD_SERVER_UNCAUGHT_H_
