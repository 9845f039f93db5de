#include "descriptor.h"

#include <unistd.h>

#include <mutex>
#include <set>

#include "process.h"

namespace s3verbs {

namespace {

// fork_mutex() guards it. A number that is not in it is not ours any more: in a child it may be another file's.
std::set<int>& opened() {
    static std::set<int>& only = *new std::set<int>;
    return only;
}

void close_all() {
    for (const int descriptor : opened()) {
        ::close(descriptor);
    }
    opened().clear();
}

[[maybe_unused]] const bool closes_in_child = (after_fork(close_all), true);

}  // namespace

Descriptor::Descriptor(int descriptor) : descriptor_(descriptor) {
    if (descriptor >= 0) {
        const std::lock_guard lock(fork_mutex());
        opened().insert(descriptor);
    }
}

void Descriptor::close() noexcept {
    if (descriptor_ < 0) {
        return;
    }
    const std::lock_guard lock(fork_mutex());
    if (opened().erase(descriptor_) != 0) {
        ::close(descriptor_);
    }
    descriptor_ = -1;
}

void Descriptor::release() noexcept {
    const std::lock_guard lock(fork_mutex());
    opened().erase(descriptor_);
    descriptor_ = -1;
}

}  // namespace s3verbs
