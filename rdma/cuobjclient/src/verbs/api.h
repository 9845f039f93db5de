// The calls of libibverbs, librdmacm and libmlx5 that this library makes, as a table of pointers.
//
// The libraries are loaded when the first verbs transport is made, so a machine without rdma-core still has the
// same-host transport. The tests put calls of their own into a table.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#if __has_include(<infiniband/mlx5dv.h>)
#include <infiniband/mlx5dv.h>
#define S3VERBS_HAS_MLX5DV 1
#else
struct mlx5dv_qp_init_attr;
#endif

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace s3verbs {

// Each member does what the function of its name does (infiniband/verbs.h, rdma/rdma_cma.h, infiniband/mlx5dv.h).
struct VerbsApi {
    decltype(&::ibv_get_device_list) get_device_list;
    decltype(&::ibv_free_device_list) free_device_list;
    decltype(&::ibv_get_device_name) get_device_name;
    decltype(&::ibv_open_device) open_device;
    decltype(&::ibv_close_device) close_device;
    decltype(&::ibv_query_device) query_device;
    int (*query_port)(ibv_context*, std::uint8_t, _compat_ibv_port_attr*);
    decltype(&::ibv_get_async_event) get_async_event;
    decltype(&::ibv_ack_async_event) ack_async_event;
    decltype(&::ibv_alloc_pd) alloc_pd;
    decltype(&::ibv_dealloc_pd) dealloc_pd;
    ibv_mr* (*reg_mr)(ibv_pd*, void*, std::size_t, int);
    decltype(&::ibv_dereg_mr) dereg_mr;
    decltype(&::ibv_create_cq) create_cq;
    decltype(&::ibv_destroy_cq) destroy_cq;
    decltype(&::ibv_create_srq) create_srq;
    decltype(&::ibv_destroy_srq) destroy_srq;
    decltype(&::ibv_create_qp) create_qp;
    decltype(&::ibv_modify_qp) modify_qp;
    decltype(&::ibv_destroy_qp) destroy_qp;
    decltype(&::ibv_fork_init) fork_init;

    // Null where rdma-core is older than they are: 34, 35.
    ibv_mr* (*reg_dmabuf_mr)(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int);
    ibv_fork_status (*is_fork_initialized)();

    decltype(&::rdma_create_event_channel) create_event_channel;
    decltype(&::rdma_destroy_event_channel) destroy_event_channel;
    decltype(&::rdma_get_cm_event) get_cm_event;
    decltype(&::rdma_ack_cm_event) ack_cm_event;
    decltype(&::rdma_create_id) create_id;
    decltype(&::rdma_destroy_id) destroy_id;
    decltype(&::rdma_bind_addr) bind_addr;
    decltype(&::rdma_listen) listen;
    decltype(&::rdma_get_src_port) get_src_port;
    decltype(&::rdma_init_qp_attr) init_qp_attr;
    decltype(&::rdma_accept) accept;
    decltype(&::rdma_reject) reject;
    decltype(&::rdma_disconnect) disconnect;

    // Null where libmlx5, or its header at build time, is missing; `no_mlx5` says which.
    ibv_qp* (*mlx5_create_qp)(ibv_context*, ibv_qp_init_attr_ex*, mlx5dv_qp_init_attr*);
    std::string no_mlx5;
};

// The real ones. Throws TransportError with the packages to install.
const VerbsApi& real_verbs();

// An object of the verbs libraries, destroyed by the call that is given with it.
template <typename Object>
using Owned = std::unique_ptr<Object, std::function<void(Object*)>>;

// "ibv_reg_mr: Cannot allocate memory"
std::string failure(const char* call, int code);

}  // namespace s3verbs
