#include "fake_verbs.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace s3verbs {

FakeVerbs* FakeVerbs::current = nullptr;

// The calls themselves: plain functions, as the libraries have them.
struct FakeCalls {
    using Lock = std::lock_guard<std::recursive_mutex>;

    template <typename Object>
    static Object* make(const char* call, const char* kind, ibv_context* context) {
        const Lock lock(FakeVerbs::current->mutex_);
        if (FakeVerbs::current->fails(call, FakeVerbs::current->name(context))) {
            return nullptr;
        }
        ++FakeVerbs::current->alive_[kind];
        auto* object = new Object{};
        object->context = context;
        return object;
    }

    template <typename Object>
    static int destroy(const char* call, const char* kind, Object* object) {
        const Lock lock(FakeVerbs::current->mutex_);
        if (FakeVerbs::current->fails(call, FakeVerbs::current->name(object->context))) {
            FakeVerbs::current->kept_.insert_or_assign(object, [object] { delete object; });
            return errno;
        }
        --FakeVerbs::current->alive_[kind];
        FakeVerbs::current->kept_.erase(object);
        delete object;
        return 0;
    }

    static ibv_device** get_device_list(int* count) {
        const Lock lock(FakeVerbs::current->mutex_);
        if (FakeVerbs::current->fails("get_device_list")) {
            return nullptr;
        }
        auto** list = new ibv_device* [FakeVerbs::current->devices_.size() + 1] {};
        *count = 0;
        for (auto& [name, device] : FakeVerbs::current->devices_) {
            list[(*count)++] = &device.raw;
        }
        return list;
    }

    static ibv_context* open_device(ibv_device* device) {
        const Lock lock(FakeVerbs::current->mutex_);
        if (FakeVerbs::current->fails("open_device", device->name)) {
            return nullptr;
        }
        ++FakeVerbs::current->alive_["context"];
        ++FakeVerbs::current->devices_.at(device->name).contexts;
        auto* context = new ibv_context{};
        context->device = device;
        context->async_fd = eventfd(0, EFD_CLOEXEC);
        context->cmd_fd = eventfd(0, EFD_CLOEXEC);
        return context;
    }

    static int close_device(ibv_context* context) {
        const Lock lock(FakeVerbs::current->mutex_);
        Device& device = FakeVerbs::current->devices_.at(FakeVerbs::current->name(context));
        if (--device.contexts == 0) {
            for (const char* kind : {"pd", "cq", "srq", "qp", "mr"}) {
                if (FakeVerbs::current->devices_.size() == 1 && FakeVerbs::current->alive_[kind] != 0) {
                    FakeVerbs::current->mistake(std::string("a device was closed with a live ") + kind);
                }
            }
        }
        if (close(context->async_fd) != 0 || close(context->cmd_fd) != 0) {
            FakeVerbs::current->mistake("a device's descriptor was closed by another than the library");
        }
        --FakeVerbs::current->alive_["context"];
        delete context;
        return 0;
    }
    using Device = FakeVerbs::Device;

    static int query_device(ibv_context* context, ibv_device_attr* limits) {
        const Lock lock(FakeVerbs::current->mutex_);
        if (FakeVerbs::current->fails("query_device", FakeVerbs::current->name(context))) {
            return errno;
        }
        limits->max_qp_rd_atom = FakeVerbs::current->max_reads;
        return 0;
    }

    static int query_port(ibv_context* context, std::uint8_t port, _compat_ibv_port_attr* attributes) {
        const Lock lock(FakeVerbs::current->mutex_);
        if (port != 1 || FakeVerbs::current->fails("query_port", FakeVerbs::current->name(context))) {
            return EINVAL;
        }
        reinterpret_cast<ibv_port_attr*>(attributes)->active_mtu = FakeVerbs::current->mtu;
        return 0;
    }

    static int get_async_event(ibv_context* context, ibv_async_event* event) {
        const Lock lock(FakeVerbs::current->mutex_);
        auto& reports = FakeVerbs::current->devices_.at(FakeVerbs::current->name(context)).reports;
        if (reports.empty()) {
            errno = EAGAIN;
            return -1;
        }
        event->event_type = reports.front();
        reports.pop_front();
        return 0;
    }

    static ibv_mr* region(ibv_pd* domain, const AskedRegion& asked) {
        const Lock lock(FakeVerbs::current->mutex_);
        FakeVerbs::current->regions.push_back(asked);
        if (const int code = FakeVerbs::current->on_register(asked); code != 0) {
            errno = code;
            return nullptr;
        }
        ++FakeVerbs::current->alive_["mr"];
        auto* mr = new ibv_mr{};
        mr->context = domain->context;
        mr->pd = domain;
        mr->rkey = static_cast<std::uint32_t>(0x1000 + FakeVerbs::current->regions.size());
        return mr;
    }

    static ibv_mr* reg_mr(ibv_pd* domain, void* address, std::size_t size, int access) {
        return region(domain, {FakeVerbs::current->name(domain->context), reinterpret_cast<std::uint64_t>(address),
                               size, access, -1, 0});
    }

    static ibv_mr* reg_dmabuf_mr(ibv_pd* domain, std::uint64_t offset, std::size_t size, std::uint64_t iova,
                                 int descriptor, int access) {
        return region(domain, {FakeVerbs::current->name(domain->context), iova, size, access, descriptor, offset});
    }

    static ibv_qp* create_qp(ibv_pd* domain, ibv_qp_init_attr* attributes) {
        if (attributes->qp_type != IBV_QPT_RC || attributes->send_cq == nullptr || attributes->recv_cq == nullptr) {
            errno = EINVAL;
            return nullptr;
        }
        const Lock lock(FakeVerbs::current->mutex_);
        auto* pair = make<ibv_qp>("create_qp", "qp", domain->context);
        if (pair != nullptr) {
            pair->qp_num = FakeVerbs::current->next_number_++;
        }
        return pair;
    }

    static ibv_qp* mlx5_create_qp(ibv_context* context, ibv_qp_init_attr_ex* attributes, mlx5dv_qp_init_attr* own) {
        const Lock lock(FakeVerbs::current->mutex_);
        // The kernel's mlx5 driver makes a DCT of a driver's queue pair with a receive queue, and only then.
        if (attributes->qp_type != IBV_QPT_DRIVER || attributes->recv_cq == nullptr || attributes->srq == nullptr ||
            attributes->pd == nullptr || attributes->comp_mask != IBV_QP_INIT_ATTR_PD ||
            own->comp_mask != MLX5DV_QP_INIT_ATTR_MASK_DC || own->dc_init_attr.dc_type != MLX5DV_DCTYPE_DCT) {
            errno = EINVAL;
            return nullptr;
        }
        auto* pair = make<ibv_qp>("mlx5_create_qp", "qp", context);
        if (pair != nullptr) {
            FakeVerbs::current->dct_key = own->dc_init_attr.dct_access_key;
            FakeVerbs::current->dc_targets_.insert(pair);
        }
        return pair;
    }

    // What mlx5_ib_modify_dct takes: these attributes, no others, and the number comes with RTR.
    static int modify_target(ibv_qp* pair, const ibv_qp_attr& attributes, int mask) {
        const int init = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
        const int receive = IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV | IBV_QP_PATH_MTU;
        if (pair->state == IBV_QPS_RESET && attributes.qp_state == IBV_QPS_INIT && mask == init) {
            pair->state = IBV_QPS_INIT;
            FakeVerbs::current->steps_[0].push_back({attributes, mask});
            return 0;
        }
        if (pair->state == IBV_QPS_INIT && attributes.qp_state == IBV_QPS_RTR && mask == receive) {
            pair->state = IBV_QPS_RTR;
            pair->qp_num = FakeVerbs::current->next_number_++;
            FakeVerbs::current->steps_[0].push_back({attributes, mask});
            return 0;
        }
        return EINVAL;
    }

    static int modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int mask) {
        const Lock lock(FakeVerbs::current->mutex_);
        if (FakeVerbs::current->fails("modify_qp", FakeVerbs::current->name(pair->context))) {
            return errno;
        }
        if (FakeVerbs::current->dc_targets_.count(pair) != 0) {
            return modify_target(pair, *attributes, mask);
        }
        FakeVerbs::current->steps_[pair->qp_num].push_back({*attributes, mask});
        return 0;
    }

    static int destroy_qp(ibv_qp* pair) {
        const Lock lock(FakeVerbs::current->mutex_);
        FakeVerbs::current->dc_targets_.erase(pair);
        return destroy("destroy_qp", "qp", pair);
    }

    static ibv_pd* alloc_pd(ibv_context* context) { return make<ibv_pd>("alloc_pd", "pd", context); }
    static ibv_cq* create_cq(ibv_context* context, int, void*, ibv_comp_channel*, int) {
        return make<ibv_cq>("create_cq", "cq", context);
    }
    static ibv_srq* create_srq(ibv_pd* domain, ibv_srq_init_attr*) {
        return make<ibv_srq>("create_srq", "srq", domain->context);
    }

    static int fork_init() {
        const Lock lock(FakeVerbs::current->mutex_);
        ++FakeVerbs::current->fork_inits;
        return FakeVerbs::current->fails("fork_init") ? errno : 0;
    }
};

FakeVerbs::FakeVerbs(std::map<std::string, Gid> devices) {
    for (const auto& [name, gid] : devices) {
        Device& device = devices_[name];
        std::strncpy(device.raw.name, name.c_str(), sizeof device.raw.name - 1);
        device.gid = gid;
    }
    current = this;
}

FakeVerbs::~FakeVerbs() {
    for (const auto& [object, free] : kept_) {
        free();
    }
    current = nullptr;
}

VerbsApi FakeVerbs::api() {
    VerbsApi table{};
    table.get_device_list = FakeCalls::get_device_list;
    table.free_device_list = [](ibv_device** list) { delete[] list; };
    table.get_device_name = [](ibv_device* device) -> const char* { return device->name; };
    table.open_device = FakeCalls::open_device;
    table.close_device = FakeCalls::close_device;
    table.query_device = FakeCalls::query_device;
    table.query_port = FakeCalls::query_port;
    table.get_async_event = FakeCalls::get_async_event;
    table.ack_async_event = [](ibv_async_event*) {};
    table.alloc_pd = FakeCalls::alloc_pd;
    table.dealloc_pd = [](ibv_pd* domain) { return FakeCalls::destroy("dealloc_pd", "pd", domain); };
    table.reg_mr = FakeCalls::reg_mr;
    table.reg_dmabuf_mr = FakeCalls::reg_dmabuf_mr;
    table.dereg_mr = [](ibv_mr* mr) { return FakeCalls::destroy("dereg_mr", "mr", mr); };
    table.create_cq = FakeCalls::create_cq;
    table.destroy_cq = [](ibv_cq* queue) { return FakeCalls::destroy("destroy_cq", "cq", queue); };
    table.create_srq = FakeCalls::create_srq;
    table.destroy_srq = [](ibv_srq* queue) { return FakeCalls::destroy("destroy_srq", "srq", queue); };
    table.create_qp = FakeCalls::create_qp;
    table.modify_qp = FakeCalls::modify_qp;
    table.destroy_qp = FakeCalls::destroy_qp;
    table.fork_init = FakeCalls::fork_init;
    table.is_fork_initialized = [] { return static_cast<ibv_fork_status>(FakeVerbs::current->fork_status); };
    fill_manager(table);
    table.mlx5_create_qp = FakeCalls::mlx5_create_qp;
    return table;
}

}  // namespace s3verbs
