#include "verbs/dc_targets.h"

#include <cerrno>

#include "log.h"
#include "token.h"

namespace s3verbs {

namespace {

constexpr std::uint8_t hop_limit = 64;
// 0.64 ms (enum of the RNR NAK timer). One-sided operations never see it; the transition wants a number.
constexpr std::uint8_t rnr_timer = 12;

#ifdef S3VERBS_HAS_MLX5DV

// Never posted to, but a DC target is not made without one.
Owned<ibv_srq> create_receive_queue(const VerbsApi& verbs, const Rail& rail) {
    ibv_srq_init_attr attributes{};
    attributes.attr.max_wr = 1;
    attributes.attr.max_sge = 1;
    return Owned<ibv_srq>(verbs.create_srq(rail.domain(), &attributes),
                          [&verbs](ibv_srq* each) { verbs.destroy_srq(each); });
}

Owned<ibv_qp> create_target(const VerbsApi& verbs, const Rail& rail, ibv_srq* receives, std::uint64_t key) {
    ibv_qp_init_attr_ex attributes{};
    attributes.qp_type = IBV_QPT_DRIVER;
    attributes.send_cq = attributes.recv_cq = rail.queue();
    attributes.srq = receives;
    attributes.comp_mask = IBV_QP_INIT_ATTR_PD;
    attributes.pd = rail.domain();
    mlx5dv_qp_init_attr own{};
    own.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC;
    own.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCT;
    own.dc_init_attr.dct_access_key = key;
    return Owned<ibv_qp>(verbs.mlx5_create_qp(rail.context(), &attributes, &own),
                         [&verbs](ibv_qp* each) { verbs.destroy_qp(each); });
}

#else

Owned<ibv_srq> create_receive_queue(const VerbsApi&, const Rail&) {
    return {};
}
Owned<ibv_qp> create_target(const VerbsApi&, const Rail&, ibv_srq*, std::uint64_t) {
    return {};
}

#endif

ibv_mtu path_mtu(const VerbsApi& verbs, const Rail& rail) {
    ibv_port_attr port{};
    // The plain symbol fills in the fields that were always there; `active_mtu` is one of them.
    const int code = verbs.query_port(rail.context(), static_cast<std::uint8_t>(rail.place().port),
                                      reinterpret_cast<_compat_ibv_port_attr*>(&port));
    if (code != 0) {
        throw TransportError(rail.text() + ": " + failure("ibv_query_port", code));
    }
    return port.active_mtu;
}

void modify(const VerbsApi& verbs, const Rail& rail, ibv_qp* pair, ibv_qp_attr attributes, int mask) {
    if (const int code = verbs.modify_qp(pair, &attributes, mask); code != 0) {
        throw TransportError(rail.text() + ": no DC target: " + failure("ibv_modify_qp", code) +
                             " on the way to state " + std::to_string(attributes.qp_state));
    }
}

}  // namespace

DcTarget::DcTarget(const VerbsApi& verbs, const Rail& rail, std::uint64_t key) {
    if (verbs.mlx5_create_qp == nullptr) {
        throw TransportError(rail.text() + ": no DC target: " + verbs.no_mlx5);
    }
    if (rail.place().driver != "mlx5") {
        throw TransportError(rail.text() +
                             ": no DC target: only mlx5 devices have dynamic connections, this one's driver is " +
                             rail.place().driver);
    }
    if (rail.place().gid_index > UINT8_MAX) {
        throw TransportError(rail.text() + ": no DC target: GID " + std::to_string(rail.place().gid_index) +
                             " is beyond what verbs can name");
    }
    receives_ = create_receive_queue(verbs, rail);
    if (receives_ == nullptr) {
        throw TransportError(rail.text() + ": no DC target: " + failure("ibv_create_srq", errno));
    }
    pair_ = create_target(verbs, rail, receives_.get(), key);
    if (pair_ == nullptr) {
        throw TransportError(rail.text() + ": no DC target: " + failure("mlx5dv_create_qp", errno));
    }

    ibv_qp_attr init{};
    init.qp_state = IBV_QPS_INIT;
    init.port_num = static_cast<std::uint8_t>(rail.place().port);
    init.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    modify(verbs, rail, pair_.get(), init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

    ibv_qp_attr receive{};
    receive.qp_state = IBV_QPS_RTR;
    receive.path_mtu = path_mtu(verbs, rail);
    receive.min_rnr_timer = rnr_timer;
    receive.ah_attr.port_num = init.port_num;
    receive.ah_attr.is_global = 1;
    receive.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(rail.place().gid_index);
    receive.ah_attr.grh.hop_limit = hop_limit;
    modify(verbs, rail, pair_.get(), receive, IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV);
    // Only now has the target its number: the device makes it with this last step.
}

std::string DcTargets::token(const Rail& rail, std::uint64_t address, std::uint32_t size, std::uint32_t rkey) const {
    constexpr std::uint16_t no_lid = 0;
    return dc_token(address, size, rkey, no_lid, targets_.at(&rail).number(), rail.place().gid);
}

}  // namespace s3verbs
