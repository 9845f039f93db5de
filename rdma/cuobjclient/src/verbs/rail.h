// One RoCE device of the client: what memory is registered with, and what queue pairs belong to.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>

#include "config.h"
#include "transport.h"
#include "verbs/api.h"
#include "verbs/borrowed_descriptor.h"
#include "verbs/rail_choice.h"

namespace s3verbs {

using Clock = std::chrono::steady_clock;

// For how long a rail that failed is not used while there is another.
constexpr std::chrono::seconds rest_time{5};

// What of the machine a transport uses; the tests have another one.
struct Machine {
    const VerbsApi& verbs;
    std::filesystem::path sysfs = "/sys";
    std::function<Clock::time_point()> now = Clock::now;
};

// Memory registered with one device. Not for several threads at once.
class Region {
public:
    Region(const VerbsApi& verbs, ibv_mr* mr) : verbs_(&verbs), mr_(mr) {}

    std::uint32_t rkey() const { return mr_->rkey; }

    // From then on the device refuses every access. Returns an errno, 0 when it is done.
    int deregister() { return verbs_->dereg_mr(mr_); }

private:
    const VerbsApi* verbs_;
    ibv_mr* mr_;
};

// An open device with its protection domain. Any thread, unless said otherwise. It outlives its regions and queue
// pairs.
class Rail {
public:
    // Throws TransportError.
    Rail(const Machine& machine, const Place& place);
    Rail(const Rail&) = delete;
    Rail& operator=(const Rail&) = delete;

    const Place& place() const { return place_; }
    std::string text() const { return place_.text(); }

    // Lets servers reach the memory through queue pairs of this rail, with the region's rkey and the memory's own
    // addresses. A GPU's memory by its dma-buf, or as an address that the driver's peer memory module knows.
    // Throws TransportError.
    Region register_memory(const Memory& memory, PeerMemory peer_memory);

    // A queue pair of type RC, in state RESET, to which nothing is ever posted. Throws TransportError.
    Owned<ibv_qp> create_queue_pair();

    // RDMA READs that a server may have in flight at one queue pair.
    std::uint8_t reads() const { return reads_; }

    // Whether the port is up and nothing failed of late. What the kernel says is believed for a second.
    bool is_fit();

    // Something over this rail failed: it is left to others for `rest_time`.
    void rest();

    // The device is gone, for good as far as this process is concerned.
    bool is_removed() const { return removed_; }
    void remove();

    ibv_context* context() const { return context_.get(); }
    ibv_pd* domain() const { return domain_.get(); }
    // A completion queue that stays empty.
    ibv_cq* queue() const { return queue_.get(); }

private:
    ibv_mr* register_gpu(const Memory& memory, PeerMemory peer_memory, std::string& reasons);
    ibv_mr* register_dmabuf(const Memory& memory, std::string& reasons);
    ibv_mr* register_address(const Memory& memory, int access);
    void take_events();

    const Machine machine_;
    const VerbsApi& verbs_;
    const Place place_;
    const std::filesystem::path state_;
    Owned<ibv_context> context_;
    const BorrowedDescriptor commands_;
    const BorrowedDescriptor events_;
    Owned<ibv_pd> domain_;
    Owned<ibv_cq> queue_;
    std::uint8_t reads_ = 0;
    std::atomic<bool> removed_{false};
    std::mutex mutex_;
    // Below: under mutex_.
    bool up_ = true;
    Clock::time_point looked_{};
    Clock::time_point rests_until_{};
};

}  // namespace s3verbs
