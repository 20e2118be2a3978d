// What becomes of exceptions that nobody catches.

#pragma once

namespace normd {

// From here on the process ends with a line on stderr: with exit code 1 where the system gives no
// thread or no memory, and otherwise with a core, as such an exception is a fault of ours.
void EndWithAMessage();

}  // namespace normd
