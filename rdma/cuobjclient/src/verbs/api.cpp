#include "verbs/api.h"

#include <dlfcn.h>

#include <system_error>

#include "transport.h"

namespace s3verbs {

namespace {

// Never closed: threads and objects of the library may be there until the process ends.
class Library {
public:
    Library(const char* name, const char* package) : name_(name) {
        // The same copy that librdmacm and the application use, if they do.
        handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (handle_ == nullptr) {
            throw TransportError(std::string(dlerror()) + ": install " + package + " (Debian, Ubuntu) or rdma-core");
        }
    }

    template <typename Function>
    void find(Function& function, const char* symbol) const {
        find_if_there(function, symbol);
        if (function == nullptr) {
            throw TransportError(std::string(name_) + " has no " + symbol + ": it is too old");
        }
    }

    template <typename Function>
    void find_if_there(Function& function, const char* symbol) const {
        function = reinterpret_cast<Function>(dlsym(handle_, symbol));
    }

private:
    const char* name_;
    void* handle_;
};

void load_mlx5(VerbsApi& api) {
    api.mlx5_create_qp = nullptr;
#ifdef S3VERBS_HAS_MLX5DV
    try {
        // libibverbs loads the same file as its driver for mlx5 devices.
        Library("libmlx5.so.1", "ibverbs-providers").find(api.mlx5_create_qp, "mlx5dv_create_qp");
    } catch (const TransportError& error) {
        api.no_mlx5 = error.what();
    }
#else
    api.no_mlx5 = "this library was built without infiniband/mlx5dv.h";
#endif
}

VerbsApi load() {
    VerbsApi api;
    const Library verbs("libibverbs.so.1", "libibverbs1 and ibverbs-providers");
    verbs.find(api.get_device_list, "ibv_get_device_list");
    verbs.find(api.free_device_list, "ibv_free_device_list");
    verbs.find(api.get_device_name, "ibv_get_device_name");
    verbs.find(api.open_device, "ibv_open_device");
    verbs.find(api.close_device, "ibv_close_device");
    verbs.find(api.query_device, "ibv_query_device");
    verbs.find(api.query_port, "ibv_query_port");
    verbs.find(api.get_async_event, "ibv_get_async_event");
    verbs.find(api.ack_async_event, "ibv_ack_async_event");
    verbs.find(api.alloc_pd, "ibv_alloc_pd");
    verbs.find(api.dealloc_pd, "ibv_dealloc_pd");
    verbs.find(api.reg_mr, "ibv_reg_mr");
    verbs.find(api.dereg_mr, "ibv_dereg_mr");
    verbs.find(api.create_cq, "ibv_create_cq");
    verbs.find(api.destroy_cq, "ibv_destroy_cq");
    verbs.find(api.create_srq, "ibv_create_srq");
    verbs.find(api.destroy_srq, "ibv_destroy_srq");
    verbs.find(api.create_qp, "ibv_create_qp");
    verbs.find(api.modify_qp, "ibv_modify_qp");
    verbs.find(api.destroy_qp, "ibv_destroy_qp");
    verbs.find(api.fork_init, "ibv_fork_init");
    verbs.find_if_there(api.reg_dmabuf_mr, "ibv_reg_dmabuf_mr");
    verbs.find_if_there(api.is_fork_initialized, "ibv_is_fork_initialized");

    const Library manager("librdmacm.so.1", "librdmacm1");
    manager.find(api.create_event_channel, "rdma_create_event_channel");
    manager.find(api.destroy_event_channel, "rdma_destroy_event_channel");
    manager.find(api.get_cm_event, "rdma_get_cm_event");
    manager.find(api.ack_cm_event, "rdma_ack_cm_event");
    manager.find(api.create_id, "rdma_create_id");
    manager.find(api.destroy_id, "rdma_destroy_id");
    manager.find(api.bind_addr, "rdma_bind_addr");
    manager.find(api.listen, "rdma_listen");
    manager.find(api.get_src_port, "rdma_get_src_port");
    manager.find(api.init_qp_attr, "rdma_init_qp_attr");
    manager.find(api.accept, "rdma_accept");
    manager.find(api.reject, "rdma_reject");
    manager.find(api.disconnect, "rdma_disconnect");

    load_mlx5(api);
    return api;
}

}  // namespace

const VerbsApi& real_verbs() {
    // Never destroyed: the listener's thread may still be here while the process exits. A failure is tried again.
    static const VerbsApi& api = *new VerbsApi(load());
    return api;
}

std::string failure(const char* call, int code) {
    return std::string(call) + ": " + std::generic_category().message(code);
}

}  // namespace s3verbs
