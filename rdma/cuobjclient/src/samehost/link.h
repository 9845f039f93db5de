// One session with a gateway of this machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>

#include "descriptor.h"
#include "samehost/location.h"
#include "samehost/protocol.h"

namespace s3verbs::samehost {

using Clock = std::chrono::steady_clock;

// The connection is over, or the gateway does not answer.
class LinkLost : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The gateway's answer was a refusal.
class Refused : public std::runtime_error {
public:
    Refused(Refusal refusal, const std::string& text) : std::runtime_error(text), code(refusal) {}
    Refusal code;
};

// One thread at a time: the transport's lock is held.
class Link {
public:
    // Connects and proves who we are. `patience` is for each answer. Throws LinkLost, Refused, TransportError.
    Link(const Candidate& candidate, std::chrono::milliseconds patience);

    const Secret& id() const noexcept { return id_; }

    // For something new. Takes what has come meanwhile.
    bool usable();

    // Let the gateway reach the memory; the region's handle. Throws LinkLost, Refused.
    std::uint64_t register_memory(std::uint64_t address, std::uint64_t length);

    // Whether the gateway is known to be unable to touch that region any more. Asks it to let go; does not wait. After
    // the first true the handle is forgotten.
    bool is_quiet(std::uint64_t handle);

    // Becomes readable when there may be news for `is_quiet`; -1 when nothing can come.
    int news() const noexcept;

private:
    void open();
    std::uint32_t next_serial() noexcept;
    Message ask(Message message);
    bool send(const Message& message, Clock::time_point deadline);
    bool receive(Clock::time_point deadline);
    void take(const Message& message);
    bool take_news();
    bool gateway_is_gone() const;
    void hang_up() noexcept;
    [[noreturn]] void lose(const std::string& why);

    std::chrono::milliseconds patience_;
    Descriptor socket_;
    // Read end of a pipe that all processes of the gateway hold the other end of.
    Descriptor lifeline_;
    pid_t supervisor_ = -1;
    Secret id_{};
    std::uint32_t serial_ = 0;
    // Serial of the answer that is waited for; 0: none.
    std::uint32_t awaited_ = 0;
    std::optional<Message> answer_;
    // The gateway said that nothing touches our memory any more.
    bool ended_ = false;
    bool lost_ = false;
    // It did not answer in time: good for nothing new, but what is registered can still be taken back in it.
    bool silent_ = false;
    std::set<std::uint64_t> letting_go_;
    std::set<std::uint64_t> quiet_;
};

}  // namespace s3verbs::samehost
