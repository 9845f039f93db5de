// The tests' side of the stand-ins: events, and what came of them.
#include <sys/eventfd.h>

#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "fake_verbs.h"

namespace s3verbs {

namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

}  // namespace

std::map<std::string, int> FakeVerbs::alive() {
    const Lock lock(mutex_);
    std::map<std::string, int> counts;
    for (const auto& [kind, count] : alive_) {
        if (count != 0) {
            counts[kind] = count;
        }
    }
    return counts;
}

std::vector<std::string> FakeVerbs::mistakes() {
    const Lock lock(mutex_);
    return mistakes_;
}

std::shared_ptr<Caller> FakeVerbs::connect(const std::string& device, const std::vector<std::uint8_t>& data,
                                           std::uint8_t reads, const std::string& through) {
    auto caller = std::make_shared<Caller>();
    {
        const Lock lock(mutex_);
        auto listener = listeners_.begin();
        while (listener != listeners_.end() && listener->second.device != device) {
            ++listener;
        }
        if (listener == listeners_.end()) {
            throw std::runtime_error("nobody listens at " + device);
        }
        caller->device = through.empty() ? device : through;
        // rdma_cm has contexts of its own.
        auto context = std::make_unique<ibv_context>();
        context->device = &devices_.at(caller->device).raw;
        caller->id.verbs = context.get();
        contexts_.push_back(std::move(context));
        caller->id.channel = &channel_;
        callers_[&caller->id] = caller;
        ++alive_["id"];
        push(&caller->id, listener->first, RDMA_CM_EVENT_CONNECT_REQUEST, data, reads);
    }
    if (!wait([&] { return caller->accepted || (caller->rejected && caller->destroyed); })) {
        throw std::runtime_error("a connect request was not answered");
    }
    return caller;
}

void FakeVerbs::event(rdma_cm_id* id, rdma_cm_event_type type) {
    std::size_t before = 0;
    {
        const Lock lock(mutex_);
        before = acknowledged_;
        push(id, nullptr, type, {}, 0);
    }
    if (!wait([&] { return acknowledged_ > before; })) {
        throw std::runtime_error("an event was not taken");
    }
}

void FakeVerbs::event_of_listener(const std::string& device, rdma_cm_event_type type) {
    rdma_cm_id* id = nullptr;
    {
        const Lock lock(mutex_);
        for (const auto& [each, listener] : listeners_) {
            if (listener.device == device) {
                id = each;
            }
        }
    }
    event(id, type);
}

void FakeVerbs::report(const std::string& device, ibv_event_type type) {
    const Lock lock(mutex_);
    devices_.at(device).reports.push_back(type);
}

std::uint16_t FakeVerbs::port_of(const std::string& device) {
    const Lock lock(mutex_);
    for (const auto& [id, listener] : listeners_) {
        if (listener.device == device) {
            return listener.port;
        }
    }
    return 0;
}

std::vector<Step> FakeVerbs::steps(std::uint32_t number) {
    const Lock lock(mutex_);
    return steps_[number];
}

void FakeVerbs::fail(std::map<std::string, int> calls) {
    const Lock lock(mutex_);
    failing_ = std::move(calls);
}

bool FakeVerbs::fails(const std::string& call, const std::string& device) {
    auto found = failing_.find(call + ":" + device);
    if (found == failing_.end()) {
        found = failing_.find(call);
    }
    if (found == failing_.end()) {
        return false;
    }
    errno = found->second;
    return true;
}

void FakeVerbs::push(rdma_cm_id* id, rdma_cm_id* listener, rdma_cm_event_type type, std::vector<std::uint8_t> data,
                     std::uint8_t reads) {
    auto event = std::make_unique<Event>();
    event->data = std::move(data);
    event->raw.id = id;
    event->raw.listen_id = listener;
    event->raw.event = type;
    event->raw.param.conn.private_data = event->data.data();
    event->raw.param.conn.private_data_len = static_cast<std::uint8_t>(event->data.size());
    event->raw.param.conn.responder_resources = reads;
    events_.push_back(std::move(event));
    eventfd_write(channel_.fd, 1);
}

bool FakeVerbs::wait(const std::function<bool()>& condition) {
    for (int tries = 0; tries < 10000; ++tries) {
        {
            const Lock lock(mutex_);
            if (condition()) {
                return true;
            }
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

}  // namespace s3verbs
