// A transport that exposes nothing, and does as it is told.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "transport.h"

namespace s3verbs::testing {

// What the registrations of one transport have in common with the test.
struct FakeState {
    std::atomic<int> made{0};
    std::atomic<int> alive{0};
    std::atomic<int> revocations{0};
    // Whether a revocation is sure.
    std::atomic<bool> sure{true};
    // Called in register_memory and in revoke; may throw in the first.
    std::function<void()> on_register = [] {};
    std::function<void()> on_revoke = [] {};
};

class FakeRegistration : public Registration {
public:
    FakeRegistration(std::shared_ptr<FakeState> state, const Memory& memory)
        : state_(std::move(state)), memory_(memory) {
        ++state_->made;
        ++state_->alive;
    }
    ~FakeRegistration() override { --state_->alive; }

    std::string token(std::size_t offset, std::size_t size) override {
        if (revoked_) {
            throw TransportError("the memory was revoked");
        }
        if (offset > memory_.size || size > memory_.size - offset) {
            throw std::out_of_range("outside");
        }
        return std::to_string(reinterpret_cast<std::uintptr_t>(memory_.address)) + "+" + std::to_string(offset) + ":" +
               std::to_string(size);
    }

    bool revoke() noexcept override {
        ++state_->revocations;
        state_->on_revoke();
        revoked_ = true;
        return state_->sure;
    }

    std::string device() const override { return "fake0"; }

private:
    const std::shared_ptr<FakeState> state_;
    const Memory memory_;
    std::atomic<bool> revoked_{false};
};

class FakeTransport : public Transport {
public:
    FakeTransport(TransportKind kind, std::shared_ptr<FakeState> state) : kind_(kind), state_(std::move(state)) {}
    TransportKind kind() const noexcept override { return kind_; }
    std::unique_ptr<Registration> register_memory(const Memory& memory) override {
        state_->on_register();
        return std::make_unique<FakeRegistration>(state_, memory);
    }
    std::string describe() const override { return "fake0"; }

private:
    const TransportKind kind_;
    const std::shared_ptr<FakeState> state_;
};

}  // namespace s3verbs::testing
