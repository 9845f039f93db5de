// RDMA: memory regions on RoCE devices, reached through reliable or dynamic connections.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport.h"
#include "verbs/endpoint.h"

namespace s3verbs {

// Memory is registered on every rail, and tokens take turns among them; a rail that is down or failed of late is left
// out while there is another.
//
// It belongs to the process that made it. In a forked child it is good for nothing but being destroyed, which leaves
// what is the parent's alone: a child makes a transport of its own.
class VerbsTransport final : public Transport {
public:
    // `endpoint` is of these rails.
    VerbsTransport(Rails rails, std::unique_ptr<Endpoint> endpoint, PeerMemory peer_memory);
    ~VerbsTransport() override;

    TransportKind kind() const noexcept override { return kind_; }
    std::unique_ptr<Registration> register_memory(const Memory& memory) override;
    std::string describe() const override;

private:
    class MemoryOnRails;

    const TransportKind kind_;
    const PeerMemory peer_memory_;
    const std::uint64_t process_;
    Rails rails_;
    // Destroyed first: queue pairs, then what they belong to.
    std::unique_ptr<Endpoint> endpoint_;
    std::atomic<std::size_t> turn_{0};
};

// What make_verbs_transport (backends.h) does, on this machine, with the addresses of its interfaces.
std::unique_ptr<Transport> open_verbs(const Machine& machine, const AddressesByInterface& addresses,
                                      const Config& config);

}  // namespace s3verbs
