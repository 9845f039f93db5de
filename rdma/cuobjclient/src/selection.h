// Which transport a piece of memory goes to.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "config.h"
#include "transport.h"

namespace s3verbs {

// How transports are made and memory is looked at. Each throws TransportError.
struct Backends {
    std::function<std::shared_ptr<Transport>(const Config&)> verbs;
    std::function<std::shared_ptr<Transport>(const Config&)> samehost;
    std::function<Memory(void*, std::size_t)> describe;
};

// Those of this build.
Backends real_backends();

// Opens transports when they are first needed, and looks again when there was none. Any thread.
class Selection {
public:
    Selection(Config config, Backends backends) : config_(std::move(config)), backends_(std::move(backends)) {}

    // Throws TransportError, whose text names every transport that was tried.
    std::shared_ptr<Transport> for_memory(MemoryType type);

    // Whether there is one for any memory; "" or why not.
    std::string obstacle();

private:
    std::shared_ptr<Transport> verbs();
    std::shared_ptr<Transport> samehost();
    std::shared_ptr<Transport> for_host_memory();

    const Config config_;
    const Backends backends_;
    std::mutex mutex_;
    std::shared_ptr<Transport> verbs_;
    std::shared_ptr<Transport> samehost_;
};

}  // namespace s3verbs
