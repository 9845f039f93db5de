// What the operator set, in the environment and in cuFile's JSON file. The environment wins.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "log.h"

namespace s3verbs {

// A setting that cannot be used; the text names it and says what it can be.
class ConfigError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

enum class TransportChoice { automatic, dc, rc, samehost };

// How a device gets at a GPU's memory. `automatic`: a dma-buf, and the peer memory module where there is none.
enum class PeerMemory { automatic, dmabuf, peermem };

// `device[:port[:gid index]]`, as in mlx5_0:1:3; what is left out is to be chosen.
struct DeviceName {
    std::string device;
    std::optional<unsigned> port;
    std::optional<unsigned> gid_index;
};

struct Config {
    // S3VERBS_TRANSPORT
    TransportChoice transport = TransportChoice::automatic;
    // S3VERBS_SOCKET: path of the gateway's same-host socket; empty: look for it.
    std::string socket;
    // S3VERBS_RDMA_DEVICES; empty: every active RoCE port that `rail_addresses` allows.
    std::vector<DeviceName> devices;
    // properties.rdma_dev_addr_list: IP addresses (IPv6 with an optional %zone), RDMA devices or network interfaces. A
    // rail is used when one of them is its own. Empty: all. Not looked at when `devices` is set.
    std::vector<std::string> rail_addresses;
    // properties.rdma_peer_type, CUFILE_DMABUF_ENABLE
    PeerMemory peer_memory = PeerMemory::automatic;
    // S3VERBS_DC_KEY, properties.rdma_dc_key: access key of this client's DC targets. The default is the published one.
    std::uint64_t dc_key = 0xffeeddcc;
    // S3VERBS_LOG, logging.level
    LogLevel log_level = LogLevel::info;
    // logging.dir; empty: stderr.
    std::string log_directory;
};

// The value of an environment variable, or null.
using Environment = std::function<const char*(const char*)>;

// Reads `environment`, and the file that CUFILE_ENV_PATH_JSON names. Throws ConfigError.
Config read_config(const Environment& environment);

// Of this process.
Config read_config();

// Throw ConfigError.
TransportChoice parse_transport(std::string_view text);
DeviceName parse_device(std::string_view text);
std::uint64_t parse_dc_key(std::string_view text);

}  // namespace s3verbs
