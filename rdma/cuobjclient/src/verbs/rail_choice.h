// Which devices, ports and GIDs to use. Pure; the rules are those of the server and the Python client.
#pragma once

#include <string>
#include <vector>

#include "config.h"
#include "verbs/inventory.h"

namespace s3verbs {

// A GID to speak from: what a queue pair is bound to.
struct Place {
    std::string device;
    int port;
    int gid_index;
    Gid gid;
    std::string netdev;
    std::string driver;

    // mlx5_0:1:3 (10.0.1.2 on eth2)
    std::string text() const;

    bool operator==(const Place& other) const {
        return device == other.device && port == other.port && gid_index == other.gid_index;
    }
};

struct RailChoice {
    std::vector<Place> places;
    // What of `wanted` is not here, and why. With `places` it is worth a warning, no error.
    std::vector<std::string> missing;
};

// `pins` are devices, each of which must serve. Without them `wanted` says which rails: IP addresses (IPv6 with an
// optional %zone), RDMA devices, network interfaces; one that is here is enough. Without both it is one GID of every
// active RoCE port. Where a GID is not named it is RoCE v2 and an address of its interface; IPv4 goes before IPv6, a
// plain interface before a VLAN, then the lower index.
//
// Throws TransportError with every reason why there is no rail.
RailChoice choose_rails(const Inventory& inventory, const std::vector<DeviceName>& pins,
                        const std::vector<std::string>& wanted);

}  // namespace s3verbs
