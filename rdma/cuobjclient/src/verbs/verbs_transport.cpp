#include "verbs/verbs_transport.h"

#include <stdexcept>
#include <utility>

#include "log.h"
#include "process.h"
#include "verbs/text.h"

namespace s3verbs {

class VerbsTransport::MemoryOnRails final : public Registration {
public:
    struct Part {
        Rail* rail;
        Region region;
    };

    MemoryOnRails(VerbsTransport& transport, const Memory& memory, std::vector<Part> parts)
        : transport_(transport),
          address_(reinterpret_cast<std::uint64_t>(memory.address)),
          size_(memory.size),
          process_(transport.process_),
          devices_(names_of(parts)),
          parts_(std::move(parts)) {}

    ~MemoryOnRails() override { revoke(); }

    std::string token(std::size_t offset, std::size_t size) override {
        if (size == 0 || offset > size_ || size > size_ - offset || size > UINT32_MAX) {
            throw std::out_of_range("[" + std::to_string(offset) + ", +" + std::to_string(size) +
                                    ") is not in a memory of " + std::to_string(size_) + " bytes");
        }
        if (process_ != process_generation()) {
            throw TransportError("the memory was registered before this process was forked: register it here");
        }
        const std::lock_guard lock(mutex_);
        if (revoked_) {
            throw TransportError("the memory is not registered any more");
        }
        const Part& part = next_part();
        return transport_.endpoint_->token(*part.rail, address_ + offset, static_cast<std::uint32_t>(size),
                                           part.region.rkey());
    }

    bool revoke() noexcept override {
        // In a child: no token was ever good for memory of this process.
        if (process_ != process_generation()) {
            return true;
        }
        const std::lock_guard lock(mutex_);
        revoked_ = true;
        std::vector<Part> left;
        for (Part& part : parts_) {
            // The regions of a device that was removed went with it.
            if (const int code = part.region.deregister(); code != 0 && !part.rail->is_removed()) {
                log(LogLevel::warning, "RDMA: " + part.rail->text() + ": " + failure("ibv_dereg_mr", code));
                left.push_back(part);
            }
        }
        parts_ = std::move(left);
        return parts_.empty();
    }

    std::string device() const override { return devices_; }

private:
    static std::string names_of(const std::vector<Part>& parts) {
        std::vector<std::string> names;
        for (const Part& part : parts) {
            names.push_back(part.rail->place().device);
        }
        return joined(names, ", ");
    }

    // They take turns; those that are not fit are left out while others are.
    const Part& next_part() {
        std::vector<const Part*> there;
        std::vector<const Part*> fit;
        for (const Part& part : parts_) {
            const bool is_fit = part.rail->is_fit();
            if (!part.rail->is_removed()) {
                there.push_back(&part);
                if (is_fit) {
                    fit.push_back(&part);
                }
            }
        }
        if (there.empty()) {
            throw TransportError("the RDMA devices of the memory were removed: " + devices_);
        }
        const std::vector<const Part*>& choice = fit.empty() ? there : fit;
        return *choice[transport_.turn_++ % choice.size()];
    }

    VerbsTransport& transport_;
    const std::uint64_t address_;
    const std::size_t size_;
    const std::uint64_t process_;
    const std::string devices_;
    std::mutex mutex_;
    // Below: under mutex_.
    bool revoked_ = false;
    std::vector<Part> parts_;
};

VerbsTransport::VerbsTransport(Rails rails, std::unique_ptr<Endpoint> endpoint, PeerMemory peer_memory)
    : kind_(endpoint->kind()),
      peer_memory_(peer_memory),
      process_(process_generation()),
      rails_(std::move(rails)),
      endpoint_(std::move(endpoint)) {}

VerbsTransport::~VerbsTransport() {
    if (process_ == process_generation()) {
        return;
    }
    // What the destructors would free in the kernel is the parent's, and the listener's thread is not here.
    static_cast<void>(endpoint_.release());
    for (auto& rail : rails_) {
        static_cast<void>(rail.release());
    }
}

std::unique_ptr<Registration> VerbsTransport::register_memory(const Memory& memory) {
    if (process_ != process_generation()) {
        throw TransportError("the RDMA devices were opened before this process was forked");
    }
    std::vector<MemoryOnRails::Part> parts;
    std::vector<std::string> reasons;
    for (const auto& rail : rails_) {
        if (rail->is_removed()) {
            reasons.push_back(rail->text() + ": the device was removed");
            continue;
        }
        try {
            parts.push_back({rail.get(), rail->register_memory(memory, peer_memory_)});
        } catch (const TransportError& error) {
            reasons.push_back(error.what());
        }
    }
    if (parts.empty()) {
        throw TransportError(joined(reasons, "; "));
    }
    if (!reasons.empty()) {
        log_once(LogLevel::warning, "RDMA: memory is registered with some devices only: " + joined(reasons, "; "));
    }
    return std::make_unique<MemoryOnRails>(*this, memory, std::move(parts));
}

std::string VerbsTransport::describe() const {
    std::vector<std::string> texts;
    for (const auto& rail : rails_) {
        texts.push_back(rail->text());
    }
    return joined(texts, ", ");
}

}  // namespace s3verbs
