#include "process_engine.h"

#include <mutex>
#include <vector>

#include "log.h"
#include "process.h"

namespace s3verbs {

namespace {

// fork_mutex() guards it.
struct Slot {
    std::shared_ptr<Engine> engine;
    std::size_t users = 0;
};

Slot& slot() {
    static Slot& only = *new Slot;
    return only;
}

// What the parent has open is closed already; its objects, and locks that its other threads held, stay as they are.
void abandon() {
    static auto& abandoned = *new std::vector<std::shared_ptr<Engine>>;
    abandoned.push_back(std::move(slot().engine));
}

[[maybe_unused]] const bool abandons_in_child = (after_fork(abandon), true);

std::shared_ptr<Engine> make_engine() {
    try {
        auto config = read_config();
        set_log(config.log_level, config.log_directory);
        return std::make_shared<Engine>(std::move(config), real_backends());
    } catch (const ConfigError& error) {
        log_sparsely(LogLevel::error, error.what());
        return std::make_shared<Engine>(error.what());
    }
}

}  // namespace

void join_engine() {
    {
        const std::lock_guard lock(fork_mutex());
        ++slot().users;
    }
    process_engine();
}

void leave_engine() noexcept {
    std::shared_ptr<Engine> last;
    const std::lock_guard lock(fork_mutex());
    if (slot().users != 0 && --slot().users == 0) {
        last = std::move(slot().engine);
    }
    // The lock goes first, then the engine, which can take seconds.
}

std::shared_ptr<Engine> process_engine() {
    {
        const std::lock_guard lock(fork_mutex());
        if (slot().engine || slot().users == 0) {
            return slot().engine;
        }
    }
    auto made = make_engine();
    const std::lock_guard lock(fork_mutex());
    if (!slot().engine && slot().users != 0) {
        slot().engine = made;
    }
    return slot().engine;
}

}  // namespace s3verbs
