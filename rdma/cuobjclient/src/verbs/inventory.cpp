#include "verbs/inventory.h"

#include <ifaddrs.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

#include "verbs/gid.h"

namespace s3verbs {
namespace {

namespace fs = std::filesystem;

// The kernel answers EINVAL for the attributes of an empty GID; that is no text.
std::string text_of(const fs::path& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    std::string found = text.str();
    found.erase(found.find_last_not_of(" \n") + 1);
    return found;
}

std::vector<std::string> names_in(const fs::path& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
        names.push_back(entry->path().filename().string());
    }
    return names;
}

std::vector<int> numbers_in(const fs::path& folder) {
    std::vector<int> numbers;
    for (const std::string& name : names_in(folder)) {
        int number = 0;
        const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
        if (error == std::errc() && end == name.data() + name.size())
            numbers.push_back(number);
    }
    std::sort(numbers.begin(), numbers.end());
    return numbers;
}

// "4: ACTIVE" -> "ACTIVE"
std::string word_of(const std::string& text) {
    const std::size_t colon = text.find(": ");
    return colon == std::string::npos ? "" : text.substr(colon + 2);
}

// fe80:0000:...: eight groups of four digits.
std::optional<Gid> parse_gid(const std::string& text) {
    if (text.size() != 39)
        return std::nullopt;
    const std::optional<Gid> gid = parse_address(text);
    return gid && *gid != Gid{} ? gid : std::nullopt;
}

Port read_port(int number, const fs::path& path) {
    Port port{number, word_of(text_of(path / "state")), text_of(path / "link_layer"), {}};
    for (const int index : numbers_in(path / "gids")) {
        const std::string name = std::to_string(index);
        if (const auto gid = parse_gid(text_of(path / "gids" / name))) {
            const fs::path attributes = path / "gid_attrs";
            port.gids.push_back(
                {index, *gid, text_of(attributes / "types" / name), text_of(attributes / "ndevs" / name)});
        }
    }
    return port;
}

std::string driver_of(const fs::path& path) {
    std::error_code error;
    if (fs::exists(path / "parent", error))
        return "rxe";  // Soft-RoCE's own attribute: its netdev.
    const std::string name = fs::canonical(path / "device/driver", error).filename().string();
    if (error)
        return "unknown";
    return name == "mlx5_core" ? "mlx5" : name;
}

Device read_device(const std::string& name, const fs::path& path) {
    const std::string node = word_of(text_of(path / "node_type"));
    Device device{name, driver_of(path), node.empty() ? "CA" : node, {}};
    for (const int number : numbers_in(path / "ports")) {
        device.ports.push_back(read_port(number, path / "ports" / std::to_string(number)));
    }
    return device;
}

std::string kind_of(const fs::path& netdev) {
    std::istringstream uevent(text_of(netdev / "uevent"));
    constexpr std::string_view key = "DEVTYPE=";
    for (std::string line; std::getline(uevent, line);) {
        if (line.compare(0, key.size(), key) == 0)
            return line.substr(key.size());
    }
    return "";
}

}  // namespace

AddressesByInterface interface_addresses() {
    AddressesByInterface found;
    ifaddrs* head = nullptr;
    if (getifaddrs(&head) != 0)
        return found;
    for (const ifaddrs* each = head; each != nullptr; each = each->ifa_next) {
        if (const auto gid = gid_of(each->ifa_addr))
            found[each->ifa_name].push_back(*gid);
    }
    freeifaddrs(head);
    return found;
}

Inventory read_inventory(const fs::path& sysfs, const AddressesByInterface& addresses) {
    Inventory inventory;
    for (const std::string& name : names_in(sysfs / "class/net")) {
        const auto own = addresses.find(name);
        inventory.netdevs[name] = {kind_of(sysfs / "class/net" / name),
                                   own == addresses.end() ? std::vector<Gid>{} : own->second};
    }
    for (const std::string& name : names_in(sysfs / "class/infiniband")) {
        inventory.devices.push_back(read_device(name, sysfs / "class/infiniband" / name));
    }
    // With equal lengths of digits the order of names is the natural one.
    const auto natural = [](const std::string& name) {
        const std::size_t digits = name.find_last_not_of("0123456789") + 1;
        return std::make_tuple(name.substr(0, digits), name.size(), name);
    };
    std::sort(inventory.devices.begin(), inventory.devices.end(),
              [&](const Device& a, const Device& b) { return natural(a.name) < natural(b.name); });
    return inventory;
}

}  // namespace s3verbs
