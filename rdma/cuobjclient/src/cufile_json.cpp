#include "cufile_json.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace s3verbs {

namespace {

using nlohmann::json;

// The file of a mistaken path must not fill the memory.
constexpr std::size_t largest_file = 1 << 20;

[[noreturn]] void refuse(const std::string& member, const std::string& wanted) {
    throw ConfigError(member + " must be " + wanted);
}

const json* object(const json& parent, const char* name) {
    const auto found = parent.find(name);
    if (found == parent.end() || found->is_null()) {
        return nullptr;
    }
    if (!found->is_object()) {
        refuse(name, "an object");
    }
    return &*found;
}

const json* member(const json* parent, const char* name) {
    if (parent == nullptr) {
        return nullptr;
    }
    const auto found = parent->find(name);
    return found == parent->end() || found->is_null() ? nullptr : &*found;
}

void apply_addresses(const json& list, Config& config) {
    constexpr auto name = "properties.rdma_dev_addr_list";
    constexpr auto wanted = "a list of addresses, or of names of devices or interfaces";
    if (!list.is_array()) {
        refuse(name, wanted);
    }
    config.rail_addresses.clear();
    for (const auto& item : list) {
        if (!item.is_string() || item.get_ref<const std::string&>().empty()) {
            refuse(name, wanted);
        }
        config.rail_addresses.push_back(item.get<std::string>());
    }
}

void apply_peer_type(const json& value, Config& config) {
    const std::string type = value.is_string() ? value.get<std::string>() : "";
    if (type == "dmabuf") {
        config.peer_memory = PeerMemory::dmabuf;
    } else if (type == "nvidia_peermem" || type == "nv_peer_mem" || type == "peermem") {
        config.peer_memory = PeerMemory::peermem;
    } else {
        refuse("properties.rdma_peer_type", "\"dmabuf\" or \"nvidia_peermem\"");
    }
}

void apply_dc_key(const json& value, Config& config) {
    if (value.is_number_unsigned()) {
        config.dc_key = value.get<std::uint64_t>();
    } else if (value.is_string()) {
        config.dc_key = parse_dc_key(value.get<std::string>());
    } else {
        refuse("properties.rdma_dc_key", "a number of at most 64 bits, or one as a string, as in \"0xffeeddcc\"");
    }
}

void apply_logging(const json* logging, Config& config) {
    if (const auto* level = member(logging, "level")) {
        const auto found = level->is_string() ? log_level(level->get<std::string>()) : std::nullopt;
        if (!found) {
            refuse("logging.level", "one of ERROR, WARN, NOTICE, INFO, DEBUG, TRACE");
        }
        config.log_level = *found;
    }
    if (const auto* directory = member(logging, "dir")) {
        if (!directory->is_string()) {
            refuse("logging.dir", "a directory");
        }
        config.log_directory = directory->get<std::string>();
    }
}

}  // namespace

void apply_cufile_json(std::string_view text, Config& config) {
    try {
        const json root = json::parse(text.begin(), text.end(), nullptr, true, true);
        if (!root.is_object()) {
            throw ConfigError("the outermost value must be an object");
        }
        const auto* properties = object(root, "properties");
        if (const auto* list = member(properties, "rdma_dev_addr_list")) {
            apply_addresses(*list, config);
        }
        if (const auto* type = member(properties, "rdma_peer_type")) {
            apply_peer_type(*type, config);
        }
        if (const auto* key = member(properties, "rdma_dc_key")) {
            apply_dc_key(*key, config);
        }
        apply_logging(object(root, "logging"), config);
    } catch (const json::exception& error) {
        throw ConfigError(error.what());
    }
}

void apply_cufile_json_file(const std::string& path, Config& config) {
    std::ifstream file(path, std::ios::binary);
    std::string text;
    if (file) {
        text.resize(largest_file + 1);
        file.read(text.data(), static_cast<std::streamsize>(text.size()));
        text.resize(static_cast<std::size_t>(file.gcount()));
    }
    if (!file.eof() && text.size() <= largest_file) {
        throw ConfigError("CUFILE_ENV_PATH_JSON: " + path + " cannot be read: " + std::strerror(errno));
    }
    if (text.size() > largest_file) {
        throw ConfigError("CUFILE_ENV_PATH_JSON: " + path + " is larger than a configuration can be");
    }
    try {
        apply_cufile_json(text, config);
    } catch (const ConfigError& error) {
        throw ConfigError("CUFILE_ENV_PATH_JSON: " + path + ": " + error.what());
    }
}

}  // namespace s3verbs
