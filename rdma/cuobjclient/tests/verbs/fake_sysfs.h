// A folder that looks like the part of /sys that is read.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "verbs/gid.h"
#include "verbs/inventory.h"

namespace s3verbs {

inline Gid gid_of_text(const std::string& text) {
    return parse_address(text).value();
}

// Removes itself.
class FakeSysfs {
public:
    FakeSysfs() {
        std::string name = std::filesystem::temp_directory_path() / "s3verbs-sysfs-XXXXXX";
        root_ = mkdtemp(name.data());
    }
    ~FakeSysfs() { std::filesystem::remove_all(root_); }
    FakeSysfs(const FakeSysfs&) = delete;
    FakeSysfs& operator=(const FakeSysfs&) = delete;

    const std::filesystem::path& root() const { return root_; }
    const AddressesByInterface& addresses() const { return addresses_; }

    void write(const std::string& path, const std::string& text) const {
        std::filesystem::create_directories((root_ / path).parent_path());
        std::ofstream(root_ / path) << text;
    }

    void netdev(const std::string& name, const std::string& address, const std::string& kind = "") {
        write("class/net/" + name + "/uevent",
              (kind.empty() ? "" : "DEVTYPE=" + kind + "\n") + "INTERFACE=" + name + "\n");
        addresses_[name].push_back(gid_of_text(address));
    }

    // An active Ethernet port 1. `driver` is the kernel's: mlx5_core; "rxe" for Soft-RoCE.
    void device(const std::string& name, const std::string& driver, const std::string& node = "1: CA") const {
        const std::string folder = "class/infiniband/" + name;
        write(folder + "/node_type", node + "\n");
        write(folder + "/ports/1/link_layer", "Ethernet\n");
        state(name, "4: ACTIVE");
        if (driver == "rxe") {
            write(folder + "/parent", "eth0\n");
            return;
        }
        std::filesystem::create_directories(root_ / "bus/pci/drivers" / driver);
        std::filesystem::create_directories(root_ / "devices" / name);
        std::filesystem::create_directory_symlink(root_ / "bus/pci/drivers" / driver,
                                                  root_ / "devices" / name / "driver");
        std::filesystem::create_directory_symlink(root_ / "devices" / name, root_ / folder / "device");
    }

    void gid(const std::string& device, int index, const std::string& gid, const std::string& netdev,
             const std::string& type = "RoCE v2") const {
        const std::string port = "class/infiniband/" + device + "/ports/1";
        write(port + "/gids/" + std::to_string(index), gid + "\n");
        write(port + "/gid_attrs/types/" + std::to_string(index), type + "\n");
        write(port + "/gid_attrs/ndevs/" + std::to_string(index), netdev + "\n");
    }

    void state(const std::string& device, const std::string& text) const {
        write("class/infiniband/" + device + "/ports/1/state", text + "\n");
    }

private:
    std::filesystem::path root_;
    AddressesByInterface addresses_;
};

// "10.77.0.2" as the kernel writes it: 0000:0000:0000:0000:0000:ffff:0a4d:0002.
inline std::string kernel_gid(const std::string& address) {
    const Gid gid = gid_of_text(address);
    std::string text;
    char byte[3];
    for (std::size_t i = 0; i < gid.size(); ++i) {
        std::snprintf(byte, sizeof byte, "%02x", static_cast<unsigned>(gid[i]));
        text += (i != 0 && i % 2 == 0 ? ":" : "") + std::string(byte);
    }
    return text;
}

}  // namespace s3verbs
