#include "engine.h"

#include <cerrno>
#include <cstdint>
#include <new>
#include <sstream>

#include "log.h"
#include "mapped_memory.h"

namespace s3verbs {

namespace {

std::string range(const void* address, std::size_t size) {
    std::ostringstream text;
    text << ": " << size << " bytes at " << address;
    return text.str();
}

const char* memory_name(MemoryType type) {
    return type == MemoryType::system ? "host memory" : "GPU memory";
}

}  // namespace

Engine::Engine(Config config, Backends backends) : backends_(std::move(backends)) {
    selection_.emplace(std::move(config), backends_);
}

Engine::Engine(std::string broken) : broken_(std::move(broken)) {}

std::string Engine::obstacle() {
    if (!selection_) {
        return broken_;
    }
    try {
        return selection_->obstacle();
    } catch (const std::exception& error) {
        return error.what();
    }
}

void Engine::add(const void* owner, void* address, std::size_t size) {
    try {
        check(address, size);
        registry_.add(owner, reinterpret_cast<std::uintptr_t>(address), size, [&] { return expose(address, size); });
        ++counters.registrations;
    } catch (const EngineError& error) {
        ++counters.registration_failures;
        log_sparsely(LogLevel::error, error.reason);
        throw;
    } catch (const std::exception& error) {
        ++counters.registration_failures;
        const std::string text = std::string("memory cannot be registered: ") + error.what();
        log_sparsely(LogLevel::error, text);
        throw EngineError(EIO, text);
    }
}

void Engine::check(const void* address, std::size_t size) const {
    if (!selection_) {
        throw EngineError(EIO, broken_);
    }
    if (address == nullptr || size == 0) {
        throw EngineError(EINVAL, "a null pointer or 0 bytes cannot be registered");
    }
    if (size > max_registration) {
        throw EngineError(EINVAL, "at most 4 GiB - 64 KiB can be registered at once", range(address, size));
    }
    if (reinterpret_cast<std::uintptr_t>(address) > UINTPTR_MAX - size) {
        throw EngineError(EINVAL, "memory cannot end past the last address", range(address, size));
    }
}

std::unique_ptr<Registration> Engine::expose(void* address, std::size_t size) {
    const Memory memory = backends_.describe(address, size);
    if (memory.type == MemoryType::managed) {
        throw TransportError("CUDA managed memory has no place that a device could be told: use device or host memory");
    }
    if (memory.type == MemoryType::system && !is_mapped(address, size)) {
        throw EngineError(EINVAL, "the memory is not all mapped in this process", range(address, size));
    }
    const auto transport = selection_->for_memory(memory.type);
    auto registration = transport->register_memory(memory);
    log_once(LogLevel::info, std::string(memory_name(memory.type)) + " goes by " +
                                 std::string(name(transport->kind())) + ", " + registration->device());
    return registration;
}

bool Engine::release(const void* owner, void* address) noexcept {
    try {
        switch (registry_.release(owner, reinterpret_cast<std::uintptr_t>(address))) {
            case Registry::Release::unknown:
                log_once(LogLevel::debug, "memory was released that is not registered, or not in this process");
                return true;
            case Registry::Release::kept:
            case Registry::Release::released:
                return true;
            case Registry::Release::unsure:
                break;
        }
        log_sparsely(LogLevel::error,
                     "the server did not let go of released memory in time: it must not be used again yet");
    } catch (const std::exception& error) {
        log_sparsely(LogLevel::error, std::string("releasing memory: ") + error.what());
    }
    ++counters.release_failures;
    return false;
}

void Engine::release_all(const void* owner) noexcept {
    try {
        registry_.release_all(owner);
        if (registry_.gauges().quarantined != 0) {
            log_sparsely(LogLevel::error, "the server did not let go of all memory of a client that ends");
        }
    } catch (const std::exception& error) {
        log_sparsely(LogLevel::error, std::string("releasing memory: ") + error.what());
    }
}

std::string Engine::token(const void* address, std::size_t size) {
    try {
        if (!selection_) {
            throw EngineError(EIO, broken_);
        }
        const auto found = size == 0 ? std::nullopt : registry_.find(reinterpret_cast<std::uintptr_t>(address), size);
        if (!found) {
            throw EngineError(EINVAL, "the memory is not within one registration", range(address, size));
        }
        auto token = found->registration->token(found->offset, size);
        ++counters.tokens;
        return token;
    } catch (const EngineError& error) {
        ++counters.token_failures;
        log_sparsely(LogLevel::error, error.reason);
        throw;
    } catch (const std::exception& error) {
        ++counters.token_failures;
        const std::string text = std::string("there is no token: ") + error.what();
        log_sparsely(LogLevel::error, text);
        throw EngineError(EIO, text);
    }
}

bool Engine::is_registered(const void* address) const noexcept {
    try {
        return registry_.find(reinterpret_cast<std::uintptr_t>(address), 1).has_value();
    } catch (const std::exception&) {
        return false;
    }
}

s3verbs_counters Engine::snapshot() const {
    auto now = counters.snapshot();
    const auto gauges = registry_.gauges();
    now.regions = gauges.regions;
    now.region_bytes = gauges.bytes;
    now.quarantined = gauges.quarantined;
    return now;
}

}  // namespace s3verbs
