#include "selection.h"

#include "backends.h"
#include "samehost/samehost_transport.h"

namespace s3verbs {

Backends real_backends() {
    return {make_verbs_transport, samehost::make_samehost_transport, describe_memory};
}

std::shared_ptr<Transport> Selection::for_memory(MemoryType type) {
    const std::lock_guard lock(mutex_);
    if (type == MemoryType::system) {
        return for_host_memory();
    }
    if (config_.transport == TransportChoice::samehost) {
        throw TransportError(
            "samehost moves host memory only, and this is a GPU's: S3VERBS_TRANSPORT must be auto, dc or rc");
    }
    return verbs();
}

std::string Selection::obstacle() {
    const std::lock_guard lock(mutex_);
    try {
        for_host_memory();
        return "";
    } catch (const TransportError& error) {
        if (config_.transport != TransportChoice::automatic || config_.socket.empty()) {
            return error.what();
        }
        // Host memory was to go to that socket; a GPU's can do without.
        try {
            verbs();
            return "";
        } catch (const TransportError& other) {
            return std::string(error.what()) + "; " + other.what();
        }
    }
}

std::shared_ptr<Transport> Selection::for_host_memory() {
    switch (config_.transport) {
        case TransportChoice::samehost:
            return samehost();
        case TransportChoice::dc:
        case TransportChoice::rc:
            return verbs();
        case TransportChoice::automatic:
            break;
    }
    if (!config_.socket.empty() || samehost_) {
        return samehost();
    }
    try {
        return verbs();
    } catch (const TransportError& no_verbs) {
        try {
            return samehost();
        } catch (const TransportError& no_samehost) {
            throw TransportError(std::string(no_verbs.what()) + "; " + no_samehost.what());
        }
    }
}

std::shared_ptr<Transport> Selection::verbs() {
    if (!verbs_) {
        try {
            verbs_ = backends_.verbs(config_);
        } catch (const TransportError& error) {
            throw TransportError(std::string("verbs: ") + error.what());
        }
    }
    return verbs_;
}

std::shared_ptr<Transport> Selection::samehost() {
    if (!samehost_) {
        try {
            samehost_ = backends_.samehost(config_);
        } catch (const TransportError& error) {
            throw TransportError(std::string("samehost: ") + error.what());
        }
    }
    return samehost_;
}

}  // namespace s3verbs
