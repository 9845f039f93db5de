#include "samehost/samehost_transport.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "log.h"
#include "process.h"

namespace s3verbs::samehost {

namespace {

// For how long a gateway that did not answer is left alone.
constexpr std::chrono::milliseconds rest{1000};
// How long a revocation waits without looking: other threads may have taken its answer.
constexpr std::chrono::milliseconds slice{20};

}  // namespace

class SameHostRegistration : public Registration {
public:
    SameHostRegistration(std::shared_ptr<SameHostTransport> transport, const Memory& memory)
        : transport_(std::move(transport)),
          address_(reinterpret_cast<std::uintptr_t>(memory.address)),
          size_(memory.size),
          generation_(process_generation()) {
        const std::lock_guard lock(transport_->mutex_);
        join();
    }

    ~SameHostRegistration() override {
        if (!revoke()) {
            log(LogLevel::error, "samehost: the gateway did not let go of memory that is given up now");
        }
    }

    std::string token(std::size_t offset, std::size_t size) override {
        if (size == 0 || offset > size_ || size > size_ - offset || size > UINT32_MAX) {
            throw std::out_of_range("no such range in the registered memory");
        }
        const std::lock_guard lock(transport_->mutex_);
        if (revoked_) {
            throw TransportError("the memory was revoked");
        }
        if (generation_ != process_generation()) {
            throw TransportError("the memory was registered before this process was forked: register it here");
        }
        return samehost_token(address_ + offset, static_cast<std::uint32_t>(size), join()->id());
    }

    bool revoke() noexcept override {
        try {
            return let_go(Clock::now() + transport_->patience_);
        } catch (const std::exception& error) {
            log(LogLevel::error, std::string("samehost: revoking memory: ") + error.what());
            return false;
        }
    }

    std::string device() const override { return transport_->describe(); }

private:
    // A session in which the memory is registered. Only the last of them can be the current one; the others were lost,
    // and their gateway may still be at it.
    struct Held {
        std::shared_ptr<Link> link;
        std::uint64_t handle;
    };

    // Be registered in the current session. With the transport's lock held.
    const std::shared_ptr<Link>& join() {
        for (int attempt = 0; attempt < 2; ++attempt) {
            const auto link = transport_->connected();
            if (!held_.empty() && held_.back().link == link) {
                return held_.back().link;
            }
            forget_quiet();
            try {
                held_.push_back({link, link->register_memory(address_, size_)});
                return held_.back().link;
            } catch (const LinkLost&) {
                // The gateway was restarted just now.
            } catch (const Refused& refusal) {
                throw TransportError(refusal.what());
            }
        }
        throw TransportError(transport_->describe() + ": the gateway ends the session at once, or does not answer");
    }

    void forget_quiet() {
        held_.erase(std::remove_if(held_.begin(), held_.end(),
                                   [](const Held& held) { return held.link->is_quiet(held.handle); }),
                    held_.end());
    }

    bool let_go(Clock::time_point deadline) {
        if (generation_ != process_generation()) {
            return true;  // No token of it was ever good for memory of this process.
        }
        while (true) {
            int news;
            {
                const std::lock_guard lock(transport_->mutex_);
                revoked_ = true;
                forget_quiet();
                if (held_.empty()) {
                    return true;
                }
                news = held_.front().link->news();
            }
            if (Clock::now() >= deadline) {
                return false;
            }
            // Without the lock: tokens of other memory need not wait for a gateway that is slow here.
            pollfd wanted{news, static_cast<short>(POLLIN), 0};
            poll(&wanted, 1, static_cast<int>(slice.count()));
        }
    }

    const std::shared_ptr<SameHostTransport> transport_;
    const std::uint64_t address_;
    const std::size_t size_;
    const std::uint64_t generation_;
    // The transport's lock guards these.
    bool revoked_ = false;
    std::vector<Held> held_;
};

SameHostTransport::SameHostTransport(Candidate socket, std::chrono::milliseconds patience)
    : socket_(std::move(socket)), patience_(patience) {
    const std::lock_guard lock(mutex_);
    connected();
}

std::unique_ptr<Registration> SameHostTransport::register_memory(const Memory& memory) {
    if (memory.type != MemoryType::system) {
        throw TransportError("the same-host transport moves host memory only, and this is a GPU's: use dc or rc");
    }
    return std::make_unique<SameHostRegistration>(shared_from_this(), memory);
}

// With the lock held. Throws TransportError.
std::shared_ptr<Link> SameHostTransport::connected() {
    if (link_ && link_->usable()) {
        return link_;
    }
    link_.reset();
    if (Clock::now() < not_before_) {
        throw TransportError(socket_.path + ": " + why_not_);
    }
    const auto begun = Clock::now();
    try {
        link_ = std::make_shared<Link>(socket_, patience_);
        return link_;
    } catch (const std::runtime_error& error) {
        why_not_ = error.what();
        if (Clock::now() - begun >= patience_) {
            not_before_ = Clock::now() + rest;
        }
        throw TransportError(socket_.path + ": " + why_not_);
    }
}

std::shared_ptr<Transport> make_samehost_transport(const Config& config) {
    if (!config.socket.empty()) {
        return std::make_shared<SameHostTransport>(Candidate{std::filesystem::absolute(config.socket), true});
    }
    const auto places = directories([](const char* name) { return std::getenv(name); }, geteuid());
    return std::make_shared<SameHostTransport>(only_live_socket(places));
}

}  // namespace s3verbs::samehost
