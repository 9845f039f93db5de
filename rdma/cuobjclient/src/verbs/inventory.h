// RDMA devices as the choice of rails sees them, and reading them from sysfs.
//
// Sources: the kernel's Documentation/ABI/stable/sysfs-class-infiniband, getifaddrs(3).
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "token.h"

namespace s3verbs {

// A network interface of this namespace. `kind` is the kernel's DEVTYPE: vlan, bond, ... or "".
struct Netdev {
    std::string kind;
    std::vector<Gid> addresses;
};

// `type` in the kernel's words: "RoCE v2" or "IB/RoCE v1". `netdev` is "" when the kernel names none.
struct GidEntry {
    int index;
    Gid gid;
    std::string type;
    std::string netdev;
};

// `state` and `link_layer` are the kernel's words: ACTIVE, Ethernet. GIDs that are zero are left out.
struct Port {
    int number;
    std::string state;
    std::string link_layer;
    std::vector<GidEntry> gids;
};

// `driver` is rdma-core's name of mlx5 and rxe, else the kernel driver's; "unknown" when there is none to see.
// `node` is CA or RNIC (iWARP).
struct Device {
    std::string name;
    std::string driver;
    std::string node;
    std::vector<Port> ports;
};

// Devices in the natural order of their names: mlx5_2 before mlx5_10.
struct Inventory {
    std::vector<Device> devices;
    std::map<std::string, Netdev> netdevs;
};

using AddressesByInterface = std::map<std::string, std::vector<Gid>>;

// Every IPv4 and IPv6 address of this network namespace; empty where the kernel does not tell.
AddressesByInterface interface_addresses();

// What is under `sysfs`. A device or port that disappears while it is read is left out; nothing is thrown.
Inventory read_inventory(const std::filesystem::path& sysfs, const AddressesByInterface& addresses);

}  // namespace s3verbs
