// The engine of this process: one, whoever uses it. It is there as long as anybody is.
#pragma once

#include <memory>

#include "engine.h"

namespace s3verbs {

// One more user. The first reads the configuration; an engine whose configuration is broken says so.
void join_engine();

// One less. With the last the engine goes, and takes all memory back.
void leave_engine() noexcept;

// Null without a user. In a forked child it is a new engine, which knows nothing of the parent's registrations.
std::shared_ptr<Engine> process_engine();

}  // namespace s3verbs
