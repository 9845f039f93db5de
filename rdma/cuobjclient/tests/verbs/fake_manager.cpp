// The rdma_cm calls of the stand-ins.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "fake_verbs.h"

namespace s3verbs {

struct FakeManager {
    using Lock = std::lock_guard<std::recursive_mutex>;

    static rdma_event_channel* create_event_channel() {
        const Lock lock(FakeVerbs::current->mutex_);
        if (FakeVerbs::current->fails("create_event_channel")) {
            return nullptr;
        }
        ++FakeVerbs::current->alive_["channel"];
        FakeVerbs::current->channel_.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
        return &FakeVerbs::current->channel_;
    }

    static void destroy_event_channel(rdma_event_channel* channel) {
        const Lock lock(FakeVerbs::current->mutex_);
        if (FakeVerbs::current->alive_["id"] != 0) {
            FakeVerbs::current->mistake("the event channel was destroyed before its ids");
        }
        --FakeVerbs::current->alive_["channel"];
        close(channel->fd);
    }

    static int create_id(rdma_event_channel* channel, rdma_cm_id** id, void*, rdma_port_space space) {
        const Lock lock(FakeVerbs::current->mutex_);
        if (space != RDMA_PS_TCP || FakeVerbs::current->fails("create_id")) {
            return -1;
        }
        ++FakeVerbs::current->alive_["id"];
        *id = new rdma_cm_id{};
        (*id)->channel = channel;
        FakeVerbs::current->listeners_[*id] = {};
        return 0;
    }

    static int destroy_id(rdma_cm_id* id) {
        const Lock lock(FakeVerbs::current->mutex_);
        for (const auto& [raw, event] : FakeVerbs::current->taken_) {
            if (raw->id == id) {
                FakeVerbs::current->mistake(
                    "an id was destroyed before its events were acknowledged: that waits for ever");
            }
        }
        --FakeVerbs::current->alive_["id"];
        if (FakeVerbs::current->listeners_.erase(id) != 0) {
            delete id;
        } else {
            FakeVerbs::current->callers_.at(id)->destroyed = true;
        }
        return 0;
    }

    static int bind_addr(rdma_cm_id* id, sockaddr* address) {
        const Lock lock(FakeVerbs::current->mutex_);
        const auto gid = gid_of(address);
        for (auto& [name, device] : FakeVerbs::current->devices_) {
            if (gid == device.gid && !FakeVerbs::current->fails("bind_addr", name)) {
                FakeVerbs::current->listeners_.at(id).device = name;
                return 0;
            }
        }
        errno = EADDRNOTAVAIL;
        return -1;
    }

    static int listen(rdma_cm_id* id, int backlog) {
        const Lock lock(FakeVerbs::current->mutex_);
        if (backlog < 1 || FakeVerbs::current->listeners_.at(id).device.empty() ||
            FakeVerbs::current->fails("listen")) {
            return -1;
        }
        FakeVerbs::current->listeners_.at(id).port = FakeVerbs::current->next_port_++;
        return 0;
    }

    static __be16 get_src_port(rdma_cm_id* id) {
        const Lock lock(FakeVerbs::current->mutex_);
        return htobe16(FakeVerbs::current->listeners_.at(id).port);
    }

    static int get_cm_event(rdma_event_channel* channel, rdma_cm_event** event) {
        const Lock lock(FakeVerbs::current->mutex_);
        if (FakeVerbs::current->fails("get_cm_event")) {
            return -1;
        }
        if (FakeVerbs::current->events_.empty()) {
            errno = EAGAIN;
            return -1;
        }
        eventfd_t count = 0;
        eventfd_read(channel->fd, &count);
        auto first = std::move(FakeVerbs::current->events_.front());
        FakeVerbs::current->events_.pop_front();
        *event = &first->raw;
        FakeVerbs::current->taken_[*event] = std::move(first);
        return 0;
    }

    static int ack_cm_event(rdma_cm_event* event) {
        const Lock lock(FakeVerbs::current->mutex_);
        FakeVerbs::current->taken_.erase(event);
        ++FakeVerbs::current->acknowledged_;
        return 0;
    }

    // As rdma_cm does it for RoCE, with a bit that libibverbs does not know.
    static int init_qp_attr(rdma_cm_id* id, ibv_qp_attr* attributes, int* mask) {
        const Lock lock(FakeVerbs::current->mutex_);
        if (FakeVerbs::current->fails("init_qp_attr", id->verbs->device->name)) {
            return -1;
        }
        constexpr int unknown = 1 << 21;
        switch (attributes->qp_state) {
            case IBV_QPS_INIT:
                *mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
                attributes->port_num = 1;
                break;
            case IBV_QPS_RTR:
                *mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER | unknown;
                attributes->dest_qp_num = 0x77;
                attributes->max_dest_rd_atomic = 99;
                break;
            default:
                *mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                        IBV_QP_MAX_QP_RD_ATOMIC;
                attributes->max_rd_atomic = 99;
        }
        return 0;
    }

    static int accept(rdma_cm_id* id, rdma_conn_param* answer) {
        const Lock lock(FakeVerbs::current->mutex_);
        if (FakeVerbs::current->fails("accept")) {
            return -1;
        }
        Caller& caller = *FakeVerbs::current->callers_.at(id);
        const auto* data = static_cast<const std::uint8_t*>(answer->private_data);
        caller.reply.assign(data, data + answer->private_data_len);
        caller.answer = *answer;
        caller.accepted = true;
        return 0;
    }

    static int reject(rdma_cm_id* id, const void*, std::uint8_t) {
        const Lock lock(FakeVerbs::current->mutex_);
        FakeVerbs::current->callers_.at(id)->rejected = true;
        return 0;
    }
};

void FakeVerbs::fill_manager(VerbsApi& table) {
    table.create_event_channel = FakeManager::create_event_channel;
    table.destroy_event_channel = FakeManager::destroy_event_channel;
    table.get_cm_event = FakeManager::get_cm_event;
    table.ack_cm_event = FakeManager::ack_cm_event;
    table.create_id = FakeManager::create_id;
    table.destroy_id = FakeManager::destroy_id;
    table.bind_addr = FakeManager::bind_addr;
    table.listen = FakeManager::listen;
    table.get_src_port = FakeManager::get_src_port;
    table.init_qp_attr = FakeManager::init_qp_attr;
    table.accept = FakeManager::accept;
    table.reject = FakeManager::reject;
    table.disconnect = [](rdma_cm_id*) { return 0; };
}

}  // namespace s3verbs
