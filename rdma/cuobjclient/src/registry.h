// Which memory is registered: counted by address, found by any range within.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transport.h"

namespace s3verbs {

// Any thread. No lock is held while a transport works, so tokens of other memory do not wait for that.
class Registry {
public:
    using Make = std::function<std::unique_ptr<Registration>()>;

    struct Found {
        std::shared_ptr<Registration> registration;
        std::size_t offset;  // of the address that was asked for
    };

    enum class Release {
        unknown,   // nothing is registered at that address
        kept,      // others still have it registered
        released,  // no server can touch the memory any more
        unsure,    // a server may; ask again
    };

    struct Gauges {
        std::size_t regions;
        std::size_t bytes;
        std::size_t quarantined;
    };

    Registry() = default;
    // Takes all back. What a transport could not take back within some seconds altogether is logged, and kept for ever.
    ~Registry();
    Registry(const Registry&) = delete;
    Registry& operator=(const Registry&) = delete;

    // One more registration by `owner`. `make` is called when the memory is not registered from that address on for
    // that many bytes; what it throws is thrown.
    void add(const void* owner, std::uintptr_t address, std::size_t size, const Make& make);

    // One less, of `owner` if it has one, else of another. The last takes the memory back, which can take seconds.
    Release release(const void* owner, std::uintptr_t address);

    // All of `owner`. What cannot be taken back within some seconds altogether goes into quarantine.
    void release_all(const void* owner);

    // The registration that has the whole range and begins nearest before it; empty: there is none.
    std::optional<Found> find(std::uintptr_t address, std::size_t size) const;

    Gauges gauges() const;

private:
    struct Region {
        std::size_t size;
        std::shared_ptr<Registration> registration;
    };

    // All registrations of one address. More than one region: a later registration named more bytes.
    struct Entry {
        std::vector<Region> regions;  // the largest is the last
        std::map<const void*, std::size_t> holders;
        // A transport is at work for it, so its regions do not change; others wait.
        bool busy = false;
        bool closing = false;
    };

    // Memory that was released, and that a server may still touch.
    struct Quarantined {
        std::uintptr_t address;
        std::vector<Region> regions;
    };

    using Entries = std::map<std::uintptr_t, Entry>;
    using Clock = std::chrono::steady_clock;

    Entries::iterator settled(std::unique_lock<std::mutex>& lock, std::uintptr_t address);
    Release close(std::unique_lock<std::mutex>& lock, Entries::iterator entry, bool try_now = true);
    Release retry(std::unique_lock<std::mutex>& lock, std::uintptr_t address);
    static bool revoke(std::vector<Region>& regions) noexcept;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    Entries entries_;
    std::vector<Quarantined> quarantine_;
    Clock::time_point next_retry_{};
    std::size_t largest_ = 0;
};

}  // namespace s3verbs
