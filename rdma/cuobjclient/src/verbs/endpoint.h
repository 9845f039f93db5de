// Where servers reach the memory that is registered with a transport's rails.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport.h"
#include "verbs/rail.h"

namespace s3verbs {

using Rails = std::vector<std::unique_ptr<Rail>>;

// A listener for reliable connections, or a DC target of each rail. Any thread.
class Endpoint {
public:
    virtual ~Endpoint() = default;

    virtual TransportKind kind() const noexcept = 0;

    // A token for memory with this remote key, by this rail of the transport.
    virtual std::string token(const Rail& rail, std::uint64_t address, std::uint32_t size,
                              std::uint32_t rkey) const = 0;
};

}  // namespace s3verbs
