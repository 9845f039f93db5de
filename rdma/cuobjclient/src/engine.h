// What one process has registered, with which transports: the core behind the C++ and the C interface.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "config.h"
#include "counters.h"
#include "registry.h"
#include "selection.h"

namespace s3verbs {

// The operation cannot be done; the text says why.
class EngineError : public std::runtime_error {
public:
    EngineError(int error_number, const std::string& why, const std::string& which = "")
        : std::runtime_error(why + which), number(error_number), reason(why) {}
    // EINVAL: the arguments; EIO: the transport.
    int number;
    // The text without what differs from call to call: the same trouble with many buffers is one line in the log.
    std::string reason;
};

// Any thread.
class Engine {
public:
    static constexpr std::size_t max_registration = 0x100000000 - 0x10000;

    // Opens nothing yet.
    Engine(Config config, Backends backends);

    // An engine whose configuration cannot be used: every operation fails with that text.
    explicit Engine(std::string broken);

    // "" when there is a transport, else why there is none. It looks each time, until there is one.
    std::string obstacle();

    // One more registration by `owner`, which is any address that stands for the caller. Throws EngineError.
    void add(const void* owner, void* address, std::size_t size);

    // One less. False: a server may still touch the memory.
    bool release(const void* owner, void* address) noexcept;

    // All of `owner`.
    void release_all(const void* owner) noexcept;

    // For memory within one registration. Throws EngineError.
    std::string token(const void* address, std::size_t size);

    bool is_registered(const void* address) const noexcept;

    Counters counters;
    s3verbs_counters snapshot() const;

private:
    void check(const void* address, std::size_t size) const;
    std::unique_ptr<Registration> expose(void* address, std::size_t size);

    const std::string broken_;
    // Before the registry: transports outlive their registrations.
    std::optional<Selection> selection_;
    Backends backends_;
    Registry registry_;
};

}  // namespace s3verbs
