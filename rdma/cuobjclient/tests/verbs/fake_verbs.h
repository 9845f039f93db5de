// Stand-ins for the calls of VerbsApi: devices in memory, which check what the real libraries demand and count what
// lives.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "verbs/api.h"
#include "verbs/gid.h"

namespace s3verbs {

// A registration as a device was asked for it; `descriptor` is -1 without a dma-buf.
struct AskedRegion {
    std::string device;
    std::uint64_t address;
    std::size_t size;
    int access;
    int descriptor;
    std::uint64_t offset;
};

// A step of a queue pair.
struct Step {
    ibv_qp_attr attributes;
    int mask;
};

// A server that connects: what it said, and what came of it.
struct Caller {
    rdma_cm_id id{};
    std::string device;
    bool accepted = false;
    bool rejected = false;
    bool destroyed = false;
    std::vector<std::uint8_t> reply;
    rdma_conn_param answer{};
};

// One at a time. Any thread. Everything that was made must be gone when it is destroyed, and it must have been used
// well; `mistakes` says what was not.
class FakeVerbs {
public:
    // Devices with their GIDs; a listener binds to the address of one.
    explicit FakeVerbs(std::map<std::string, Gid> devices);
    ~FakeVerbs();

    VerbsApi api();

    // What is alive, by kind: context, pd, cq, srq, qp, mr, id, channel.
    std::map<std::string, int> alive();
    std::vector<std::string> mistakes();

    // A connect request to the listener at the address of `device`; `through` is the device that it came in by. Waits
    // until it is answered.
    std::shared_ptr<Caller> connect(const std::string& device, const std::vector<std::uint8_t>& data,
                                    std::uint8_t reads = 16, const std::string& through = "");
    // An event of an id, and of the listening id of a device. Wait until it is taken.
    void event(rdma_cm_id* id, rdma_cm_event_type type);
    void event_of_listener(const std::string& device, rdma_cm_event_type type);
    // What the device reports next.
    void report(const std::string& device, ibv_event_type type);

    std::uint16_t port_of(const std::string& device);
    // Steps of the queue pair with this number; of the DC targets for 0.
    std::vector<Step> steps(std::uint32_t number);

    // Objects that are lost for good are no leak.
    void forget(const std::string& kind, int count) { alive_[kind] -= count; }
    // From now on these calls fail and no others: names as in VerbsApi, or "call:device" for one device, with an errno.
    void fail(std::map<std::string, int> calls);

    std::vector<AskedRegion> regions;
    std::function<int(const AskedRegion&)> on_register = [](const AskedRegion&) { return 0; };
    int fork_status = IBV_FORK_UNNEEDED;
    int fork_inits = 0;
    // Of the last DC target.
    std::uint64_t dct_key = 0;
    int max_reads = 16;
    ibv_mtu mtu = IBV_MTU_4096;

private:
    friend struct FakeCalls;
    friend struct FakeManager;

    static FakeVerbs* current;
    static void fill_manager(VerbsApi& table);

    struct Device {
        ibv_device raw{};
        Gid gid{};
        std::deque<ibv_event_type> reports;
        int contexts = 0;
    };
    struct Listener {
        std::string device;
        std::uint16_t port = 0;
    };

    bool fails(const std::string& call, const std::string& device = "");
    void mistake(const std::string& text) { mistakes_.push_back(text); }
    void push(rdma_cm_id* id, rdma_cm_id* listener, rdma_cm_event_type type, std::vector<std::uint8_t> data,
              std::uint8_t reads);
    bool wait(const std::function<bool()>& condition);
    std::string name(const ibv_context* context) const { return context->device->name; }

    std::recursive_mutex mutex_;
    std::map<std::string, Device> devices_;
    std::map<std::string, int> failing_;
    std::map<std::string, int> alive_;
    std::vector<std::string> mistakes_;
    std::map<rdma_cm_id*, Listener> listeners_;
    std::map<rdma_cm_id*, std::shared_ptr<Caller>> callers_;
    std::vector<std::unique_ptr<ibv_context>> contexts_;
    struct Event {
        rdma_cm_event raw{};
        std::vector<std::uint8_t> data;
    };
    std::deque<std::unique_ptr<Event>> events_;
    std::map<rdma_cm_event*, std::unique_ptr<Event>> taken_;
    std::size_t acknowledged_ = 0;
    // What could not be destroyed, and is not destroyed again.
    std::map<void*, std::function<void()>> kept_;
    rdma_event_channel channel_{-1};
    std::map<std::uint32_t, std::vector<Step>> steps_;
    std::set<ibv_qp*> dc_targets_;
    std::uint32_t next_number_ = 0x11;
    std::uint16_t next_port_ = 40001;
};

}  // namespace s3verbs
