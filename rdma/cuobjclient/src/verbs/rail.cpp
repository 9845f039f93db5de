#include "verbs/rail.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "log.h"

namespace s3verbs {

namespace {

constexpr std::chrono::seconds look_time{1};
constexpr int remote_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
// Entries of a completion queue that stays empty: the client posts nothing.
constexpr int no_completions = 16;

std::string lock_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return "unlimited";
    }
    return std::to_string(limit.rlim_cur) + " bytes";
}

// What to do about a registration that failed, or "".
std::string hint(int code) {
    switch (code) {
        case ENOMEM:
            return ": the limit of locked memory (ulimit -l, LimitMEMLOCK=) is " + lock_limit() +
                   "; it is too small, or the device has no more room";
        case EAGAIN:
            return ": the limit of locked memory (ulimit -l, LimitMEMLOCK=) is " + lock_limit() + "; it is too small";
        case EFAULT:
            return ": the memory is not mapped, or is a shared mapping for reading, which older kernels do not pin";
        case EPERM:
            return ": this process may not lock memory (CAP_IPC_LOCK, ulimit -l)";
        default:
            return "";
    }
}

// `call` destroys; a failure is logged, for nothing else can be done about it.
template <typename Object, typename Call>
Owned<Object> own(Object* object, Call call, const char* what, const std::string& rail) {
    return Owned<Object>(object, [call, what, rail](Object* each) {
        if (const int code = call(each); code != 0) {
            log(LogLevel::debug, "RDMA: " + rail + ": " + failure(what, code));
        }
    });
}

Owned<ibv_context> open_device(const VerbsApi& verbs, const Place& place) {
    int count = 0;
    const Owned<ibv_device*> list(verbs.get_device_list(&count), verbs.free_device_list);
    if (list == nullptr) {
        throw TransportError(failure("ibv_get_device_list", errno) + ": modprobe ib_uverbs");
    }
    for (ibv_device* const* device = list.get(); *device != nullptr; ++device) {
        if (verbs.get_device_name(*device) != place.device) {
            continue;
        }
        ibv_context* context = verbs.open_device(*device);
        if (context == nullptr) {
            const int code = errno;
            throw TransportError(place.text() + ": " + failure("ibv_open_device", code) +
                                 (code == EACCES || code == EPERM ? ": no access to /dev/infiniband/uverbs*" : ""));
        }
        return own(context, verbs.close_device, "ibv_close_device", place.text());
    }
    throw TransportError(place.text() + ": libibverbs does not know the device: its driver (ibverbs-providers) or " +
                         "/dev/infiniband/uverbs* is missing");
}

}  // namespace

Rail::Rail(const Machine& machine, const Place& place)
    : machine_(machine),
      verbs_(machine_.verbs),
      place_(place),
      state_(machine_.sysfs / "class/infiniband" / place.device / "ports" / std::to_string(place.port) / "state"),
      context_(open_device(verbs_, place)),
      commands_(context_->cmd_fd),
      events_(context_->async_fd) {
    const auto check = [&](bool good, const char* call) {
        if (!good) {
            throw TransportError(text() + ": " + failure(call, errno));
        }
    };
    // Events are looked for when a token is made, and never waited for.
    const int descriptor = context_->async_fd;
    check(fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK) == 0, "fcntl");
    ibv_device_attr limits{};
    if (const int code = verbs_.query_device(context_.get(), &limits); code != 0) {
        throw TransportError(text() + ": " + failure("ibv_query_device", code));
    }
    reads_ = static_cast<std::uint8_t>(std::clamp(limits.max_qp_rd_atom, 0, 255));
    domain_ = own(verbs_.alloc_pd(context_.get()), verbs_.dealloc_pd, "ibv_dealloc_pd", text());
    check(domain_ != nullptr, "ibv_alloc_pd");
    queue_ = own(verbs_.create_cq(context_.get(), no_completions, nullptr, nullptr, 0), verbs_.destroy_cq,
                 "ibv_destroy_cq", text());
    check(queue_ != nullptr, "ibv_create_cq");
}

Region Rail::register_memory(const Memory& memory, PeerMemory peer_memory) {
    if (memory.type != MemoryType::system) {
        std::string reasons;
        if (ibv_mr* mr = register_gpu(memory, peer_memory, reasons)) {
            return {verbs_, mr};
        }
        throw TransportError(text() + ": memory of GPU " + std::to_string(memory.gpu) + ": " + reasons);
    }
    ibv_mr* mr = register_address(memory, remote_access);
    if (mr == nullptr && errno == EFAULT) {
        // A file that is mapped for reading can still be put from.
        mr = register_address(memory, IBV_ACCESS_REMOTE_READ);
    }
    if (mr == nullptr) {
        const int code = errno;
        throw TransportError(text() + ": cannot register " + std::to_string(memory.size) +
                             " bytes: " + failure("ibv_reg_mr", code) + hint(code));
    }
    return {verbs_, mr};
}

ibv_mr* Rail::register_gpu(const Memory& memory, PeerMemory peer_memory, std::string& reasons) {
    const auto note = [&](const std::string& reason) { reasons += (reasons.empty() ? "" : "; ") + reason; };
    if (peer_memory != PeerMemory::peermem) {
        if (ibv_mr* mr = register_dmabuf(memory, reasons)) {
            return mr;
        }
    }
    ibv_mr* mr = register_address(memory, remote_access);
    if (mr == nullptr) {
        const int code = errno;
        note("by peer memory: " + failure("ibv_reg_mr", code) +
             (code == EFAULT ? ": is the module nvidia-peermem loaded?" : hint(code)));
    }
    return mr;
}

ibv_mr* Rail::register_dmabuf(const Memory& memory, std::string& reasons) {
    if (verbs_.reg_dmabuf_mr == nullptr) {
        reasons = "as a dma-buf: this libibverbs is older than ibv_reg_dmabuf_mr";
        return nullptr;
    }
    if (!memory.dmabuf) {
        reasons = "as a dma-buf: the driver has none for it";
        return nullptr;
    }
    try {
        const DmaBuf dmabuf = memory.dmabuf();
        // The region's addresses are the memory's own, as a token names them.
        ibv_mr* mr =
            verbs_.reg_dmabuf_mr(domain_.get(), dmabuf.offset, memory.size,
                                 reinterpret_cast<std::uint64_t>(memory.address), dmabuf.descriptor, remote_access);
        const int code = errno;
        close(dmabuf.descriptor);
        if (mr == nullptr) {
            reasons = "as a dma-buf: " + failure("ibv_reg_dmabuf_mr", code);
        }
        return mr;
    } catch (const TransportError& error) {
        reasons = std::string("as a dma-buf: ") + error.what();
        return nullptr;
    }
}

ibv_mr* Rail::register_address(const Memory& memory, int access) {
    return verbs_.reg_mr(domain_.get(), memory.address, memory.size, access);
}

Owned<ibv_qp> Rail::create_queue_pair() {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = queue_.get();
    attributes.cap.max_send_wr = attributes.cap.max_recv_wr = 1;
    attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
    attributes.qp_type = IBV_QPT_RC;
    auto pair = own(verbs_.create_qp(domain_.get(), &attributes), verbs_.destroy_qp, "ibv_destroy_qp", text());
    if (pair == nullptr) {
        throw TransportError(text() + ": " + failure("ibv_create_qp", errno));
    }
    return pair;
}

bool Rail::is_fit() {
    const std::lock_guard lock(mutex_);
    const Clock::time_point now = machine_.now();
    if (looked_ == Clock::time_point{} || now - looked_ >= look_time) {
        looked_ = now;
        take_events();
        std::string state;
        std::getline(std::ifstream(state_), state);
        const bool up = state == "4: ACTIVE";
        if (up != up_) {
            log(up ? LogLevel::info : LogLevel::warning, "RDMA: " + text() + ": the port is " + (up ? "up" : "down"));
        }
        up_ = up;
    }
    return up_ && !removed_ && now >= rests_until_;
}

void Rail::take_events() {
    ibv_async_event event{};
    while (verbs_.get_async_event(context_.get(), &event) == 0) {
        const ibv_event_type type = event.event_type;
        verbs_.ack_async_event(&event);
        switch (type) {
            case IBV_EVENT_DEVICE_FATAL:
                log(LogLevel::error, "RDMA: " + text() + ": the device has failed or was removed");
                removed_ = true;
                break;
            case IBV_EVENT_QP_FATAL:
            case IBV_EVENT_CQ_ERR:
            case IBV_EVENT_SRQ_ERR:
                log(LogLevel::warning, "RDMA: " + text() + ": the device reports error event " + std::to_string(type));
                rests_until_ = machine_.now() + rest_time;
                break;
            default:
                // A port's state is read from sysfs; a refused access is the server's mistake, and its connection's
                // end.
                log(LogLevel::debug, "RDMA: " + text() + ": event " + std::to_string(type));
        }
    }
}

void Rail::rest() {
    const std::lock_guard lock(mutex_);
    rests_until_ = machine_.now() + rest_time;
}

void Rail::remove() {
    removed_ = true;
}

}  // namespace s3verbs
