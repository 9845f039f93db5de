// What a fork must not catch half-way, and telling a child from its parent.
#pragma once

#include <cstdint>
#include <mutex>

namespace s3verbs {

// The one lock that fork() waits for, so that a child finds it free. It is held for a few instructions only, and
// nothing is waited for while it is held, but the lock of the loader's list of libraries, which the loader holds as
// briefly.
std::mutex& fork_mutex();

// A number that is another one in a forked child. Objects that belong to a process keep it and compare.
std::uint64_t process_generation() noexcept;

// Let `in_child` run in every forked child, with fork_mutex() held. It may free nothing that another thread of the
// parent could have been changing.
void after_fork(void (*in_child)());

}  // namespace s3verbs
