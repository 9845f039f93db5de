#include "process.h"

#include <pthread.h>

#include <atomic>
#include <vector>

namespace s3verbs {

namespace {

struct Forking {
    std::mutex mutex;
    std::atomic<std::uint64_t> generation{1};
    std::vector<void (*)()> in_child;

    Forking();
};

// Never destroyed: threads of the application may still be here while the process exits.
Forking& forking() {
    static Forking& only = *new Forking;
    return only;
}

Forking::Forking() {
    pthread_atfork([] { forking().mutex.lock(); }, [] { forking().mutex.unlock(); },
                   [] {
                       Forking& state = forking();
                       ++state.generation;
                       for (auto* action : state.in_child) {
                           action();
                       }
                       state.mutex.unlock();
                   });
}

}  // namespace

std::mutex& fork_mutex() {
    return forking().mutex;
}

std::uint64_t process_generation() noexcept {
    return forking().generation.load(std::memory_order_relaxed);
}

void after_fork(void (*in_child)()) {
    const std::lock_guard lock(fork_mutex());
    forking().in_child.push_back(in_child);
}

}  // namespace s3verbs
