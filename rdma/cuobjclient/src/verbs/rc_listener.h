// The client's end of reliable connections: servers connect, show the nonce, and then reach registered memory.
//
// Source: docs/wire-format.md, "RC". One thread has the rdma_cm event channel, all its ids and the queue pairs. Nothing
// is ever posted here: what a queue pair lets a server do is decided by rkeys, so a connection alone gives access to
// nothing.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "descriptor.h"
#include "verbs/borrowed_descriptor.h"
#include "verbs/endpoint.h"
#include "verbs/handshake.h"

namespace s3verbs {

constexpr std::size_t max_connections = 256;

// Listens on the address of each rail, on ports that the kernel chooses.
//
// At most `most` connections are held. One more ends the oldest: a server that vanished without a word keeps its place
// otherwise, for the client's end has nothing to notice it by. A server whose connection is ended makes a new one and
// tries again.
class RcListener final : public Endpoint {
public:
    // Listens on every rail that lets it; `reasons` says why others do not. The rails outlive it. Throws TransportError
    // when there is none.
    RcListener(const VerbsApi& verbs, const Rails& rails, const Secret& nonce, std::size_t most = max_connections);

    // On return the queue pairs are gone.
    ~RcListener() override;

    TransportKind kind() const noexcept override { return TransportKind::rc; }
    std::string token(const Rail& rail, std::uint64_t address, std::uint32_t size, std::uint32_t rkey) const override;

    bool listens_on(const Rail& rail) const { return ports_.count(&rail) != 0; }
    const std::vector<std::string>& reasons() const { return reasons_; }

    // Servers' connections now, and requests that were refused so far.
    std::size_t connections() const { return connection_count_; }
    std::size_t refused() const { return refused_; }

private:
    struct Listening {
        rdma_cm_id* id;
        Rail* rail;
    };
    struct Connection {
        rdma_cm_id* id;
        Rail* rail;
        Owned<ibv_qp> pair;
    };
    using Connections = std::list<Connection>;

    void listen(Rail& rail);
    void run();
    bool take_event();
    void requested(rdma_cm_id* id, rdma_cm_id* listener, const rdma_conn_param& asked);
    void accept(Connection& connection, std::uint8_t reads_asked);
    void modify(Connection& connection, ibv_qp_state state, void (*change)(ibv_qp_attr&, std::uint8_t),
                std::uint8_t reads);
    void ended(rdma_cm_id* id, rdma_cm_event_type event);
    void end(Connections::iterator connection);
    void refuse(rdma_cm_id* id);
    void destroy(rdma_cm_id* id);
    void close();

    const VerbsApi& verbs_;
    const Secret nonce_;
    const std::size_t most_;
    std::map<const Rail*, std::uint16_t> ports_;
    std::vector<std::string> reasons_;
    std::atomic<std::size_t> connection_count_{0};
    std::atomic<std::size_t> refused_{0};
    Descriptor wake_;
    rdma_event_channel* channel_ = nullptr;
    BorrowedDescriptor events_;
    // The thread's own, from the time it runs; the oldest connection is the first.
    std::list<Listening> listening_;
    Connections connections_;
    std::thread thread_;
};

}  // namespace s3verbs
