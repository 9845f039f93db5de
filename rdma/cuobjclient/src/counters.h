// What an engine has done, for whoever watches it.
#pragma once

#include <atomic>
#include <cstdint>

#include "s3verbs.h"

namespace s3verbs {

// Any thread. The values are each true, not all of one moment.
struct Counters {
    std::atomic<std::uint64_t> registrations{0};
    std::atomic<std::uint64_t> registration_failures{0};
    std::atomic<std::uint64_t> release_failures{0};
    std::atomic<std::uint64_t> tokens{0};
    std::atomic<std::uint64_t> token_failures{0};
    std::atomic<std::uint64_t> gets{0};
    std::atomic<std::uint64_t> puts{0};
    std::atomic<std::uint64_t> get_bytes{0};
    std::atomic<std::uint64_t> put_bytes{0};
    std::atomic<std::uint64_t> callback_failures{0};

    // All but the gauges.
    s3verbs_counters snapshot() const noexcept;
};

}  // namespace s3verbs
