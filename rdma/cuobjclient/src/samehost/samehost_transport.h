// Transport of a gateway on this machine: it copies by process_vm_readv and process_vm_writev.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "samehost/link.h"
#include "samehost/location.h"
#include "transport.h"

namespace s3verbs::samehost {

constexpr std::chrono::milliseconds default_patience{5000};

// Host memory only. It connects again after the gateway was restarted; memory that is still registered is then
// registered again when its next token is asked for. It must be made by std::make_shared: registrations keep it.
class SameHostTransport : public Transport, public std::enable_shared_from_this<SameHostTransport> {
public:
    // Connects. `patience` is for each answer of the gateway, and for each `revoke`. Throws TransportError.
    explicit SameHostTransport(Candidate socket, std::chrono::milliseconds patience = default_patience);

    TransportKind kind() const noexcept override { return TransportKind::samehost; }
    std::unique_ptr<Registration> register_memory(const Memory& memory) override;
    std::string describe() const override { return socket_.path; }

private:
    friend class SameHostRegistration;

    std::shared_ptr<Link> connected();

    const Candidate socket_;
    const std::chrono::milliseconds patience_;
    std::mutex mutex_;
    std::shared_ptr<Link> link_;
    // A gateway that does not answer is not asked again before.
    Clock::time_point not_before_{};
    std::string why_not_;
};

// Of the socket that config.socket names, or of the one live gateway here. Throws TransportError.
std::shared_ptr<Transport> make_samehost_transport(const Config& config);

}  // namespace s3verbs::samehost
