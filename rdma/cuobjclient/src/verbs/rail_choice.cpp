#include "verbs/rail_choice.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "transport.h"
#include "verbs/gid.h"
#include "verbs/text.h"

namespace s3verbs {

namespace {

// Places of a device, a port or a wish, and why what is missing is missing.
struct Verdict {
    std::vector<Place> places;
    std::vector<std::string> reasons;
};

std::string text_of(const GidEntry& entry) {
    return "GID " + std::to_string(entry.index) + " (" + address_text(entry.gid) + ")";
}

// Why no queue pair can be bound to this GID, or "".
std::string unusable(const GidEntry& entry, const Inventory& inventory) {
    if (entry.type != "RoCE v2") {
        return text_of(entry) + " is " + (entry.type.empty() ? "of no known type" : entry.type);
    }
    if (entry.netdev.empty()) {
        return text_of(entry) + " has no network interface";
    }
    const auto netdev = inventory.netdevs.find(entry.netdev);
    if (netdev == inventory.netdevs.end()) {
        return text_of(entry) + " is of " + entry.netdev + ", which is not in this network namespace";
    }
    const std::vector<Gid>& own = netdev->second.addresses;
    if (std::find(own.begin(), own.end(), entry.gid) == own.end()) {
        return text_of(entry) + " is not an address of " + entry.netdev;
    }
    return "";
}

// Why this GID is only used when it is asked for, or "".
std::string unwanted(const GidEntry& entry) {
    if (is_link_local(entry.gid)) {
        return text_of(entry) + " is link-local";
    }
    if (is_loopback(entry.gid)) {
        return text_of(entry) + " is loopback";
    }
    return "";
}

// Why the port cannot be used whatever its GIDs are, or "".
std::string idle(const Port& port) {
    if (port.link_layer != "Ethernet") {
        return "link layer " + port.link_layer + "; RoCE needs Ethernet";
    }
    if (port.state != "ACTIVE") {
        return "the port is " + port.state;
    }
    return "";
}

Place place_of(const Device& device, const Port& port, const GidEntry& entry) {
    return {device.name, port.number, entry.index, entry.gid, entry.netdev, device.driver};
}

Verdict refused(const Device& device, const Port& port, const std::string& reason) {
    return {{}, {device.name + ":" + std::to_string(port.number) + ": " + reason}};
}

// `netdev`: only GIDs of this interface; "" for any.
Verdict judge_port(const Device& device, const Port& port, std::optional<unsigned> gid_index, const std::string& netdev,
                   const Inventory& inventory) {
    if (const std::string problem = idle(port); !problem.empty()) {
        return refused(device, port, problem);
    }
    std::vector<std::string> problems;
    const GidEntry* best = nullptr;
    const auto rank = [&](const GidEntry& entry) {
        return std::make_tuple(!is_ipv4(entry.gid), inventory.netdevs.at(entry.netdev).kind == "vlan", entry.index);
    };
    for (const GidEntry& entry : port.gids) {
        if (gid_index ? static_cast<int>(*gid_index) != entry.index : !netdev.empty() && entry.netdev != netdev) {
            continue;
        }
        std::string problem = unusable(entry, inventory);
        if (problem.empty() && !gid_index) {
            problem = unwanted(entry);
        }
        if (!problem.empty()) {
            problems.push_back(problem);
        } else if (best == nullptr || rank(entry) < rank(*best)) {
            best = &entry;
        }
    }
    if (best != nullptr) {
        return {{place_of(device, port, *best)}, {}};
    }
    if (gid_index) {
        return refused(device, port,
                       problems.empty() ? "GID " + std::to_string(*gid_index) + " is empty" : problems.front());
    }
    return refused(
        device, port,
        "no RoCE v2 GID with an address: " + (problems.empty() ? "the GID table is empty" : joined(problems, "; ")));
}

void append(Verdict& all, const Verdict& more) {
    for (const Place& place : more.places) {
        if (std::find(all.places.begin(), all.places.end(), place) == all.places.end()) {
            all.places.push_back(place);
        }
    }
    all.reasons.insert(all.reasons.end(), more.reasons.begin(), more.reasons.end());
}

Verdict judge_device(const Device& device, const DeviceName& pin, const Inventory& inventory) {
    if (device.node == "RNIC") {
        return {{}, {device.name + ": iWARP; RoCE is needed"}};
    }
    Verdict verdict;
    for (const Port& port : device.ports) {
        if (!pin.port || static_cast<int>(*pin.port) == port.number) {
            append(verdict, judge_port(device, port, pin.gid_index, "", inventory));
        }
    }
    if (verdict.places.empty() && verdict.reasons.empty()) {
        verdict.reasons.push_back(device.name +
                                  (pin.port ? ": it has no port " + std::to_string(*pin.port) : ": no ports"));
    }
    return verdict;
}

const Device* find_device(const Inventory& inventory, const std::string& name) {
    const auto found = std::find_if(inventory.devices.begin(), inventory.devices.end(),
                                    [&](const Device& each) { return each.name == name; });
    return found == inventory.devices.end() ? nullptr : &*found;
}

std::string known_devices(const Inventory& inventory) {
    std::vector<std::string> names;
    for (const Device& each : inventory.devices) {
        names.push_back(each.name);
    }
    return names.empty() ? "this machine has none" : "there are " + joined(names, ", ");
}

RailChoice by_pins(const Inventory& inventory, const std::vector<DeviceName>& pins) {
    Verdict all;
    std::vector<std::string> mistakes;
    for (const DeviceName& pin : pins) {
        const Device* device = find_device(inventory, pin.device);
        if (device == nullptr) {
            mistakes.push_back(pin.device + ": no such RDMA device; " + known_devices(inventory));
            continue;
        }
        const Verdict verdict = judge_device(*device, pin, inventory);
        append(all, verdict);
        // Of a device without a port one port that serves is enough.
        if (verdict.places.empty()) {
            mistakes.push_back(joined(verdict.reasons, "; "));
        }
    }
    if (!mistakes.empty()) {
        throw TransportError(joined(mistakes, "; "));
    }
    return {all.places, {}};
}

Verdict find_address(const Inventory& inventory, const std::string& text, const Gid& gid) {
    std::vector<std::string> problems;
    for (const Device& device : inventory.devices) {
        for (const Port& port : device.ports) {
            for (const GidEntry& entry : port.gids) {
                if (entry.gid != gid || device.node == "RNIC") {
                    continue;
                }
                std::string problem = idle(port);
                if (problem.empty()) {
                    problem = unusable(entry, inventory);
                }
                if (problem.empty()) {
                    return {{place_of(device, port, entry)}, {}};
                }
                problems.push_back(device.name + ":" + std::to_string(port.number) + ": " + problem);
            }
        }
    }
    return {{}, {text + ": " + (problems.empty() ? "no RoCE device has this address" : joined(problems, "; "))}};
}

Verdict find_netdev(const Inventory& inventory, const std::string& name) {
    Verdict verdict;
    for (const Device& device : inventory.devices) {
        for (const Port& port : device.ports) {
            const auto is_its = [&](const GidEntry& entry) { return entry.netdev == name; };
            if (device.node != "RNIC" && std::any_of(port.gids.begin(), port.gids.end(), is_its)) {
                append(verdict, judge_port(device, port, std::nullopt, name, inventory));
            }
        }
    }
    if (verdict.places.empty() && verdict.reasons.empty()) {
        verdict.reasons.push_back(name + ": no IP address, no RDMA device and no network interface of one; " +
                                  known_devices(inventory));
    }
    return verdict;
}

RailChoice by_wishes(const Inventory& inventory, const std::vector<std::string>& wanted) {
    Verdict all;
    for (const std::string& wish : wanted) {
        if (const auto gid = parse_address(wish.substr(0, wish.find('%')))) {
            append(all, find_address(inventory, wish, *gid));
        } else if (const Device* device = find_device(inventory, wish)) {
            append(all, judge_device(*device, {wish, std::nullopt, std::nullopt}, inventory));
        } else {
            append(all, find_netdev(inventory, wish));
        }
    }
    if (all.places.empty()) {
        throw TransportError(joined(all.reasons, "; "));
    }
    return {all.places, all.reasons};
}

}  // namespace

std::string Place::text() const {
    return device + ":" + std::to_string(port) + ":" + std::to_string(gid_index) + " (" + address_text(gid) + " on " +
           netdev + ")";
}

RailChoice choose_rails(const Inventory& inventory, const std::vector<DeviceName>& pins,
                        const std::vector<std::string>& wanted) {
    if (!pins.empty()) {
        return by_pins(inventory, pins);
    }
    if (!wanted.empty()) {
        return by_wishes(inventory, wanted);
    }
    Verdict all;
    for (const Device& device : inventory.devices) {
        append(all, judge_device(device, {device.name, std::nullopt, std::nullopt}, inventory));
    }
    if (all.places.empty()) {
        throw TransportError("no active RoCE device: " +
                             (all.reasons.empty() ? "this machine has no RDMA device" : joined(all.reasons, "; ")));
    }
    return {all.places, {}};
}

}  // namespace s3verbs
