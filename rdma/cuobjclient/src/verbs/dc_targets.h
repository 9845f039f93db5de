// DC targets of mlx5 devices: what servers with dynamic connections reach registered memory through.
//
// It has not run on hardware: the calls, their order and their arguments are checked against a model of them.
// Sources: mlx5dv_create_qp(3), ibv_modify_qp(3), and what the kernel's mlx5 driver demands of each step of a DCT.
#pragma once

#include <cstdint>
#include <map>

#include "verbs/endpoint.h"

namespace s3verbs {

// A queue pair of type DCT, in RTR.
//
//     RESET -> INIT (P_Key, port, access) -> RTR (path MTU, address of this side, RNR timer)
class DcTarget {
public:
    // The rail outlives it. `key`: what an initiator must show. Throws TransportError: no libmlx5, a device without
    // dynamic connections, a refused step.
    DcTarget(const VerbsApi& verbs, const Rail& rail, std::uint64_t key);

    // Field 5 of a token.
    std::uint32_t number() const { return pair_->qp_num; }

private:
    Owned<ibv_srq> receives_;
    Owned<ibv_qp> pair_;
};

// One target of each rail.
class DcTargets final : public Endpoint {
public:
    explicit DcTargets(std::map<const Rail*, DcTarget> targets) : targets_(std::move(targets)) {}

    TransportKind kind() const noexcept override { return TransportKind::dc; }
    std::string token(const Rail& rail, std::uint64_t address, std::uint32_t size, std::uint32_t rkey) const override;

private:
    std::map<const Rail*, DcTarget> targets_;
};

}  // namespace s3verbs
