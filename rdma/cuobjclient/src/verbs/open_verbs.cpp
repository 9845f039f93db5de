// Which devices are opened, and whether they are reached through dynamic or reliable connections.
#include <algorithm>
#include <utility>

#include "backends.h"
#include "log.h"
#include "verbs/dc_targets.h"
#include "verbs/rc_listener.h"
#include "verbs/text.h"
#include "verbs/verbs_transport.h"

namespace s3verbs {

namespace {

constexpr std::uint64_t default_dc_key = 0xffeeddcc;

// Until Linux 5.12 a fork moved registered memory of the parent away from under the device: the parent's next write to
// a page went to a copy. libibverbs keeps such memory from children there, if it is told before anything else. Newer
// kernels copy for the child instead, and need no help.
void make_fork_safe(const VerbsApi& verbs) {
    if (verbs.is_fork_initialized != nullptr && verbs.is_fork_initialized() != IBV_FORK_DISABLED) {
        return;
    }
    if (const int code = verbs.fork_init(); code != 0) {
        log_once(LogLevel::warning, "RDMA: " + failure("ibv_fork_init", code) +
                                        ": on this kernel a fork of this process can corrupt registered memory");
    }
}

std::unique_ptr<Transport> open_dc(const VerbsApi& verbs, Rails rails, const Config& config) {
    std::map<const Rail*, DcTarget> targets;
    std::vector<std::string> reasons;
    Rails kept;
    for (auto& rail : rails) {
        try {
            targets.emplace(rail.get(), DcTarget(verbs, *rail, config.dc_key));
            kept.push_back(std::move(rail));
        } catch (const TransportError& error) {
            reasons.push_back(error.what());
        }
    }
    if (kept.empty()) {
        throw TransportError(joined(reasons, "; "));
    }
    if (!reasons.empty()) {
        log(LogLevel::warning, "RDMA: not all devices serve dynamic connections: " + joined(reasons, "; "));
    }
    if (config.dc_key == default_dc_key) {
        log(LogLevel::warning,
            "RDMA: the DC access key is the published default, which protects nothing: set S3VERBS_DC_KEY here, or "
            "rdma_dc_key in cufile.json, and rdma_dc_key of the server");
    }
    return std::make_unique<VerbsTransport>(std::move(kept), std::make_unique<DcTargets>(std::move(targets)),
                                            config.peer_memory);
}

std::unique_ptr<Transport> open_rc(const VerbsApi& verbs, Rails rails, const Config& config) {
    auto listener = std::make_unique<RcListener>(verbs, rails, random_nonce());
    if (!listener->reasons().empty()) {
        const std::string reasons = joined(listener->reasons(), "; ");
        if (!config.devices.empty()) {
            throw TransportError(reasons);
        }
        log(LogLevel::warning, "RDMA: not all devices take connections: " + reasons);
        const auto is_deaf = [&](const std::unique_ptr<Rail>& rail) { return !listener->listens_on(*rail); };
        rails.erase(std::remove_if(rails.begin(), rails.end(), is_deaf), rails.end());
    }
    return std::make_unique<VerbsTransport>(std::move(rails), std::move(listener), config.peer_memory);
}

Rails open_rails(const Machine& machine, const std::vector<Place>& places, bool all_must_serve) {
    Rails rails;
    std::vector<std::string> reasons;
    for (const Place& place : places) {
        try {
            rails.push_back(std::make_unique<Rail>(machine, place));
        } catch (const TransportError& error) {
            reasons.push_back(error.what());
        }
    }
    if (rails.empty() || (all_must_serve && !reasons.empty())) {
        throw TransportError(joined(reasons, "; "));
    }
    if (!reasons.empty()) {
        log(LogLevel::warning, "RDMA: not all devices can be used: " + joined(reasons, "; "));
    }
    return rails;
}

}  // namespace

std::unique_ptr<Transport> open_verbs(const Machine& machine, const AddressesByInterface& addresses,
                                      const Config& config) {
    const RailChoice choice =
        choose_rails(read_inventory(machine.sysfs, addresses), config.devices, config.rail_addresses);
    if (!choice.missing.empty()) {
        log(LogLevel::warning, "RDMA: not all of rdma_dev_addr_list can be used: " + joined(choice.missing, "; "));
    }
    make_fork_safe(machine.verbs);
    const bool all_must_serve = !config.devices.empty();
    Rails rails = open_rails(machine, choice.places, all_must_serve);
    if (config.transport == TransportChoice::rc) {
        return open_rc(machine.verbs, std::move(rails), config);
    }
    if (config.transport == TransportChoice::dc) {
        return open_dc(machine.verbs, std::move(rails), config);
    }
    const auto has_dc = [](const std::unique_ptr<Rail>& rail) { return rail->place().driver == "mlx5"; };
    if (std::any_of(rails.begin(), rails.end(), has_dc)) {
        try {
            return open_dc(machine.verbs, std::move(rails), config);
        } catch (const TransportError& error) {
            log(LogLevel::warning, std::string("RDMA: reliable connections are used: ") + error.what());
            rails = open_rails(machine, choice.places, all_must_serve);
        }
    }
    return open_rc(machine.verbs, std::move(rails), config);
}

std::unique_ptr<Transport> make_verbs_transport(const Config& config) {
    return open_verbs({real_verbs()}, interface_addresses(), config);
}

}  // namespace s3verbs
