#include "verbs/rc_listener.h"

#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "log.h"
#include "verbs/gid.h"
#include "verbs/text.h"

namespace s3verbs {

namespace {

constexpr int backlog = 128;
// What kernels add for RoCE and libibverbs does not know (IB_QP_RESERVED1 to 4).
constexpr int reserved_attributes = 0xf << 21;

void set_access(ibv_qp_attr& attributes, std::uint8_t) {
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
}

void set_reads_served(ibv_qp_attr& attributes, std::uint8_t reads) {
    attributes.max_dest_rd_atomic = reads;
}

void set_reads_started(ibv_qp_attr& attributes, std::uint8_t) {
    attributes.max_rd_atomic = 0;
}

// The host's signals are for the host's threads.
std::thread without_signals(std::function<void()> body) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        std::thread thread(std::move(body));
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return thread;
    } catch (const std::system_error& error) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw TransportError(std::string("no thread for the RDMA listener: ") + error.what());
    }
}

}  // namespace

RcListener::RcListener(const VerbsApi& verbs, const Rails& rails, const Secret& nonce, std::size_t most)
    : verbs_(verbs), nonce_(nonce), most_(most) {
    try {
        wake_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (!wake_) {
            throw TransportError(failure("eventfd", errno));
        }
        channel_ = verbs_.create_event_channel();
        if (channel_ == nullptr) {
            const int code = errno;
            throw TransportError(failure("rdma_create_event_channel", code) +
                                 (code == ENODEV || code == ENOENT ? ": modprobe rdma_ucm" : ""));
        }
        events_ = BorrowedDescriptor(channel_->fd);
        if (fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK) != 0) {
            throw TransportError(failure("fcntl", errno));
        }
        for (const auto& rail : rails) {
            try {
                listen(*rail);
            } catch (const TransportError& error) {
                reasons_.push_back(error.what());
            }
        }
        if (ports_.empty()) {
            throw TransportError(joined(reasons_, "; "));
        }
        thread_ = without_signals([this] { run(); });
    } catch (...) {
        close();
        throw;
    }
    pthread_setname_np(thread_.native_handle(), "s3verbs-rdma");
}

RcListener::~RcListener() {
    eventfd_write(wake_.get(), 1);
    thread_.join();
    close();
}

std::string RcListener::token(const Rail& rail, std::uint64_t address, std::uint32_t size, std::uint32_t rkey) const {
    return rc_token(address, size, rkey, ports_.at(&rail), rail.place().gid, nonce_);
}

void RcListener::listen(Rail& rail) {
    const auto check = [&](int result, const char* call) {
        if (result != 0) {
            throw TransportError(rail.text() + ": " + failure(call, errno));
        }
    };
    rdma_cm_id* id = nullptr;
    check(verbs_.create_id(channel_, &id, nullptr, RDMA_PS_TCP), "rdma_create_id");
    try {
        const Gid& gid = rail.place().gid;
        sockaddr_storage address =
            socket_address(gid, is_link_local(gid) ? if_nametoindex(rail.place().netdev.c_str()) : 0);
        check(verbs_.bind_addr(id, reinterpret_cast<sockaddr*>(&address)), "rdma_bind_addr");
        check(verbs_.listen(id, backlog), "rdma_listen");
        listening_.push_back({id, &rail});
    } catch (...) {
        destroy(id);
        throw;
    }
    ports_[&rail] = be16toh(verbs_.get_src_port(id));
}

void RcListener::run() {
    pollfd waiting[] = {{channel_->fd, POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    while ((waiting[1].revents & POLLIN) == 0) {
        if (poll(waiting, std::size(waiting), -1) < 0) {
            continue;
        }
        try {
            while (take_event()) {
            }
        } catch (const std::exception& error) {
            log_sparsely(LogLevel::warning, std::string("RDMA: listener: ") + error.what());
            // An event that stays must not keep a core busy.
            constexpr int pause_ms = 100;
            poll(&waiting[1], 1, pause_ms);
        }
    }
}

bool RcListener::take_event() {
    rdma_cm_event* event = nullptr;
    if (verbs_.get_cm_event(channel_, &event) != 0) {
        if (errno == EAGAIN || errno == EINTR) {
            return false;
        }
        throw TransportError(failure("rdma_get_cm_event", errno));
    }
    // Destroying an id waits until its events are acknowledged, so the event is copied first.
    const rdma_cm_event copy = *event;
    std::vector<std::uint8_t> data;
    if (copy.event == RDMA_CM_EVENT_CONNECT_REQUEST && copy.param.conn.private_data != nullptr) {
        const auto* begin = static_cast<const std::uint8_t*>(copy.param.conn.private_data);
        data.assign(begin, begin + copy.param.conn.private_data_len);
    }
    verbs_.ack_cm_event(event);
    switch (copy.event) {
        case RDMA_CM_EVENT_CONNECT_REQUEST:
            if (is_connect_request(data.data(), data.size(), nonce_)) {
                requested(copy.id, copy.listen_id, copy.param.conn);
            } else {
                ++refused_;
                log(LogLevel::debug, "RDMA: a connection without this process's nonce was refused");
                refuse(copy.id);
            }
            break;
        case RDMA_CM_EVENT_DISCONNECTED:
        case RDMA_CM_EVENT_REJECTED:
        case RDMA_CM_EVENT_UNREACHABLE:
        case RDMA_CM_EVENT_CONNECT_ERROR:
        case RDMA_CM_EVENT_DEVICE_REMOVAL:
            ended(copy.id, copy.event);
            break;
        default:
            break;
    }
    return true;
}

void RcListener::requested(rdma_cm_id* id, rdma_cm_id* listener, const rdma_conn_param& asked) {
    const auto found =
        std::find_if(listening_.begin(), listening_.end(), [&](const Listening& each) { return each.id == listener; });
    // A queue pair is of the rail's own device.
    if (found == listening_.end() || id->verbs == nullptr ||
        verbs_.get_device_name(id->verbs->device) != found->rail->place().device) {
        ++refused_;
        refuse(id);
        return;
    }
    while (connections_.size() >= most_) {
        end(connections_.begin());
    }
    connections_.push_back({id, found->rail, nullptr});
    ++connection_count_;
    try {
        accept(connections_.back(), asked.responder_resources);
        log(LogLevel::debug, "RDMA: " + found->rail->text() + ": a server has connected");
    } catch (const TransportError& error) {
        log_sparsely(LogLevel::info, std::string("RDMA: cannot accept a connection: ") + error.what());
        verbs_.reject(id, nullptr, 0);
        end(std::prev(connections_.end()));
    }
}

void RcListener::accept(Connection& connection, std::uint8_t reads_asked) {
    const std::uint8_t reads = std::min(reads_asked, connection.rail->reads());
    connection.pair = connection.rail->create_queue_pair();
    modify(connection, IBV_QPS_INIT, set_access, reads);
    modify(connection, IBV_QPS_RTR, set_reads_served, reads);
    modify(connection, IBV_QPS_RTS, set_reads_started, reads);
    const Greeting reply = accept_reply(nonce_);
    rdma_conn_param answer{};
    answer.private_data = reply.data();
    answer.private_data_len = static_cast<std::uint8_t>(reply.size());
    answer.responder_resources = reads;
    answer.rnr_retry_count = 7;
    answer.qp_num = connection.pair->qp_num;
    if (verbs_.accept(connection.id, &answer) != 0) {
        throw TransportError(connection.rail->text() + ": " + failure("rdma_accept", errno));
    }
}

void RcListener::modify(Connection& connection, ibv_qp_state state, void (*change)(ibv_qp_attr&, std::uint8_t),
                        std::uint8_t reads) {
    ibv_qp_attr attributes{};
    attributes.qp_state = state;
    int mask = 0;
    // Fails for a server that has given up in the meantime.
    if (verbs_.init_qp_attr(connection.id, &attributes, &mask) != 0) {
        throw TransportError(connection.rail->text() + ": " + failure("rdma_init_qp_attr", errno));
    }
    change(attributes, reads);
    if (const int code = verbs_.modify_qp(connection.pair.get(), &attributes, mask & ~reserved_attributes); code != 0) {
        throw TransportError(connection.rail->text() + ": " + failure("ibv_modify_qp", code));
    }
}

void RcListener::ended(rdma_cm_id* id, rdma_cm_event_type event) {
    const auto connection =
        std::find_if(connections_.begin(), connections_.end(), [&](const Connection& each) { return each.id == id; });
    if (connection != connections_.end()) {
        if (event == RDMA_CM_EVENT_UNREACHABLE || event == RDMA_CM_EVENT_CONNECT_ERROR) {
            // The server asked for a connection and did not hear the answer.
            log_sparsely(LogLevel::warning,
                         "RDMA: " + connection->rail->text() + ": a server could not be answered; resting it");
            connection->rail->rest();
        }
        end(connection);
        return;
    }
    const auto listening =
        std::find_if(listening_.begin(), listening_.end(), [&](const Listening& each) { return each.id == id; });
    if (listening == listening_.end()) {
        return;
    }
    Rail* rail = listening->rail;
    log(LogLevel::warning, "RDMA: " + rail->text() + ": the device was removed");
    rail->remove();
    for (auto each = connections_.begin(); each != connections_.end();) {
        const auto current = each++;
        if (current->rail == rail) {
            end(current);
        }
    }
    destroy(id);
    listening_.erase(listening);
}

void RcListener::end(Connections::iterator connection) {
    verbs_.disconnect(connection->id);
    connection->pair.reset();
    destroy(connection->id);
    connections_.erase(connection);
    --connection_count_;
}

void RcListener::refuse(rdma_cm_id* id) {
    verbs_.reject(id, nullptr, 0);
    destroy(id);
}

void RcListener::destroy(rdma_cm_id* id) {
    if (verbs_.destroy_id(id) != 0) {
        log(LogLevel::debug, "RDMA: listener: " + failure("rdma_destroy_id", errno));
    }
}

void RcListener::close() {
    while (!connections_.empty()) {
        end(connections_.begin());
    }
    for (const Listening& each : listening_) {
        destroy(each.id);
    }
    listening_.clear();
    if (channel_ != nullptr) {
        events_ = {};
        verbs_.destroy_event_channel(channel_);
    }
}

}  // namespace s3verbs
