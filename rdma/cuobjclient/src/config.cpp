#include "config.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "cufile_json.h"

namespace s3verbs {

namespace {

constexpr std::size_t longest_device_name = 63;

bool is_name(std::string_view text) {
    return !text.empty() && text.size() <= longest_device_name &&
           std::all_of(text.begin(), text.end(),
                       [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.'; });
}

std::string quoted(std::string_view text) {
    return "\"" + std::string(text) + "\"";
}

std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(" \t");
    if (first == text.npos) {
        return {};
    }
    return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::optional<unsigned> number(std::string_view text, unsigned most) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value > most) {
        return std::nullopt;
    }
    return value;
}

std::vector<DeviceName> parse_devices(std::string_view text) {
    std::vector<DeviceName> devices;
    while (!text.empty()) {
        const auto comma = text.find(',');
        const auto item = trimmed(text.substr(0, comma));
        if (!item.empty()) {
            devices.push_back(parse_device(item));
        }
        text = comma == text.npos ? std::string_view() : text.substr(comma + 1);
    }
    return devices;
}

bool parse_dmabuf(std::string_view text) {
    std::string lower(text);
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    if (lower == "true" || lower == "1") {
        return true;
    }
    if (lower == "false" || lower == "0") {
        return false;
    }
    throw ConfigError("CUFILE_DMABUF_ENABLE is " + quoted(text) + "; it can be TRUE or FALSE");
}

}  // namespace

TransportChoice parse_transport(std::string_view text) {
    if (text == "auto") {
        return TransportChoice::automatic;
    }
    if (text == "dc") {
        return TransportChoice::dc;
    }
    if (text == "rc") {
        return TransportChoice::rc;
    }
    if (text == "samehost") {
        return TransportChoice::samehost;
    }
    throw ConfigError("S3VERBS_TRANSPORT is " + quoted(text) + "; it can be auto, dc, rc or samehost");
}

DeviceName parse_device(std::string_view text) {
    const auto refuse = [&]() -> ConfigError {
        return ConfigError("S3VERBS_RDMA_DEVICES: " + quoted(text) +
                           " is no device, device:port or device:port:gid index, as in mlx5_0:1:3");
    };
    DeviceName name;
    const auto first = text.find(':');
    name.device = text.substr(0, first);
    if (!is_name(name.device)) {
        throw refuse();
    }
    if (first == text.npos) {
        return name;
    }
    auto rest = text.substr(first + 1);
    const auto second = rest.find(':');
    name.port = number(rest.substr(0, second), 255);
    if (!name.port || *name.port == 0) {
        throw refuse();
    }
    if (second != rest.npos) {
        name.gid_index = number(rest.substr(second + 1), 65535);
        if (!name.gid_index) {
            throw refuse();
        }
    }
    return name;
}

std::uint64_t parse_dc_key(std::string_view text) {
    auto digits = text;
    const bool is_hex = digits.substr(0, 2) == "0x" || digits.substr(0, 2) == "0X";
    if (is_hex) {
        digits.remove_prefix(2);
    }
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, is_hex ? 16 : 10);
    if (error != std::errc() || end != digits.data() + digits.size()) {
        throw ConfigError("the DC key is " + quoted(text) +
                          "; it must be a number of at most 64 bits, as in 0xffeeddcc");
    }
    return value;
}

Config read_config(const Environment& environment) {
    Config config;
    const auto set = [&](const char* name) -> std::string_view {
        const char* value = environment(name);
        return value == nullptr ? std::string_view() : trimmed(value);
    };
    if (const auto path = set("CUFILE_ENV_PATH_JSON"); !path.empty()) {
        apply_cufile_json_file(std::string(path), config);
    }
    if (const auto text = set("CUFILE_DMABUF_ENABLE"); !text.empty()) {
        config.peer_memory = parse_dmabuf(text) ? PeerMemory::dmabuf : PeerMemory::peermem;
    }
    if (const auto text = set("S3VERBS_TRANSPORT"); !text.empty()) {
        config.transport = parse_transport(text);
    }
    config.socket = set("S3VERBS_SOCKET");
    config.devices = parse_devices(set("S3VERBS_RDMA_DEVICES"));
    if (const auto text = set("S3VERBS_DC_KEY"); !text.empty()) {
        config.dc_key = parse_dc_key(text);
    }
    if (const auto text = set("S3VERBS_LOG"); !text.empty()) {
        const auto level = log_level(text);
        if (!level) {
            throw ConfigError("S3VERBS_LOG is " + quoted(text) + "; it can be error, warning, info or debug");
        }
        config.log_level = *level;
    }
    return config;
}

Config read_config() {
    return read_config([](const char* name) { return std::getenv(name); });
}

}  // namespace s3verbs
