#include "verbs/rail_choice.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <algorithm>
#include <functional>

#include "fake_sysfs.h"
#include "transport.h"

namespace s3verbs {
namespace {

std::string reason(const std::function<void()>& action) {
    try {
        action();
    } catch (const TransportError& error) {
        return error.what();
    }
    return "";
}

class RailChoiceTest : public testing::Test {
protected:
    RailChoice choose(const std::vector<DeviceName>& pins = {}, const std::vector<std::string>& wanted = {}) const {
        return choose_rails(read_inventory(sysfs.root(), sysfs.addresses()), pins, wanted);
    }

    // What was chosen, without its addresses.
    std::vector<std::string> names(const std::vector<DeviceName>& pins = {},
                                   const std::vector<std::string>& wanted = {}) const {
        std::vector<std::string> found;
        for (const Place& place : choose(pins, wanted).places) {
            found.push_back(place.device + ":" + std::to_string(place.port) + ":" + std::to_string(place.gid_index));
        }
        return found;
    }

    std::string why_not(const std::vector<DeviceName>& pins = {}, const std::vector<std::string>& wanted = {}) const {
        return reason([&] { choose(pins, wanted); });
    }

    void usual(const std::string& device, const std::string& netdev, const std::string& address,
               const std::string& driver = "mlx5_core") {
        sysfs.netdev(netdev, address);
        sysfs.device(device, driver);
        sysfs.gid(device, 0, "fe80:0000:0000:0000:0202:0aff:fe4d:0001", netdev, "IB/RoCE v1");
        sysfs.gid(device, 1, kernel_gid(address), netdev, "IB/RoCE v1");
        sysfs.gid(device, 2, "0000:0000:0000:0000:0000:0000:0000:0000", netdev);
        sysfs.gid(device, 3, kernel_gid(address), netdev);
    }

    using Names = std::vector<std::string>;
    FakeSysfs sysfs;
};

TEST_F(RailChoiceTest, WithoutWishesEveryActiveRocePortServes) {
    for (const int number : {10, 2, 0}) {
        usual("mlx5_" + std::to_string(number), "eth" + std::to_string(number), "10.0.1." + std::to_string(number + 1));
    }
    EXPECT_EQ(names(), (Names{"mlx5_0:1:3", "mlx5_2:1:3", "mlx5_10:1:3"}));
    const Place place = choose().places.at(0);
    EXPECT_EQ(place.text(), "mlx5_0:1:3 (10.0.1.1 on eth0)");
    EXPECT_EQ(place.driver, "mlx5");
    EXPECT_EQ(place.gid, gid_of_text("10.0.1.1"));
}

TEST_F(RailChoiceTest, SoftRoceIsKnownByItsParent) {
    usual("rxe0", "eth0", "10.0.0.1", "rxe");
    EXPECT_EQ(choose().places.at(0).driver, "rxe");
}

TEST_F(RailChoiceTest, ReasonsAreGivenWhenNothingServes) {
    EXPECT_EQ(why_not(), "no active RoCE device: this machine has no RDMA device");
    usual("mlx5_0", "eth0", "10.0.1.1");
    sysfs.state("mlx5_0", "1: DOWN");
    usual("mlx5_1", "eth1", "10.0.1.2");
    sysfs.write("class/infiniband/mlx5_1/ports/1/link_layer", "InfiniBand\n");
    sysfs.device("siw0", "siw", "4: RNIC");
    const std::string text = why_not();
    EXPECT_NE(text.find("mlx5_0:1: the port is DOWN"), text.npos) << text;
    EXPECT_NE(text.find("mlx5_1:1: link layer InfiniBand; RoCE needs Ethernet"), text.npos) << text;
    EXPECT_NE(text.find("siw0: iWARP"), text.npos) << text;
}

TEST_F(RailChoiceTest, AGidMustBeRoceV2AndAnAddressOfAnInterfaceHere) {
    sysfs.netdev("eth0", "10.0.1.1");
    sysfs.netdev("eth0", "fe80::1");
    sysfs.netdev("lo", "127.0.0.1");
    sysfs.device("mlx5_0", "mlx5_core");
    sysfs.gid("mlx5_0", 0, kernel_gid("10.0.1.1"), "eth0", "IB/RoCE v1");
    sysfs.gid("mlx5_0", 1, kernel_gid("10.0.1.9"), "eth0");
    sysfs.gid("mlx5_0", 2, kernel_gid("10.0.1.1"), "eth7");
    sysfs.gid("mlx5_0", 3, kernel_gid("fe80::1"), "eth0");
    sysfs.gid("mlx5_0", 4, kernel_gid("10.0.1.1"), "");
    sysfs.gid("mlx5_0", 5, kernel_gid("127.0.0.1"), "lo");
    const std::string text = why_not();
    for (const char* part :
         {"GID 0 (10.0.1.1) is IB/RoCE v1", "GID 1 (10.0.1.9) is not an address of eth0",
          "GID 2 (10.0.1.1) is of eth7, which is not in this network namespace", "GID 3 (fe80::1) is link-local",
          "GID 4 (10.0.1.1) has no network interface", "GID 5 (127.0.0.1) is loopback"}) {
        EXPECT_NE(text.find(part), text.npos) << part << " in " << text;
    }
    EXPECT_EQ(names({{"mlx5_0", 1, 3}}), Names{"mlx5_0:1:3"}) << "link-local is allowed when it is asked for";
    EXPECT_NE(why_not({{"mlx5_0", 1, 0}}).find("is IB/RoCE v1"), text.npos);
}

TEST_F(RailChoiceTest, Ipv4GoesBeforeIpv6AndAPlainInterfaceBeforeAVlan) {
    sysfs.netdev("eth0", "2001:db8::1");
    sysfs.netdev("eth0", "10.0.1.1");
    sysfs.netdev("eth0.5", "10.0.5.1", "vlan");
    sysfs.device("mlx5_0", "mlx5_core");
    sysfs.gid("mlx5_0", 1, kernel_gid("2001:db8::1"), "eth0");
    sysfs.gid("mlx5_0", 2, kernel_gid("10.0.5.1"), "eth0.5");
    sysfs.gid("mlx5_0", 7, kernel_gid("10.0.1.1"), "eth0");
    EXPECT_EQ(names(), Names{"mlx5_0:1:7"});
    EXPECT_EQ(names({{"mlx5_0", 1, 2}, {"mlx5_0", 1, 1}, {"mlx5_0", {}, {}}}),
              (Names{"mlx5_0:1:2", "mlx5_0:1:1", "mlx5_0:1:7"}));
    EXPECT_EQ(names({}, {"eth0.5"}), Names{"mlx5_0:1:2"});
    EXPECT_EQ(names({}, {"2001:db8::1", "10.0.5.1"}), (Names{"mlx5_0:1:1", "mlx5_0:1:2"}));
}

TEST_F(RailChoiceTest, APinThatCannotBeUsedIsAnError) {
    usual("mlx5_0", "eth0", "10.0.1.1");
    EXPECT_EQ(why_not({{"mlx5_7", {}, {}}}), "mlx5_7: no such RDMA device; there are mlx5_0");
    EXPECT_EQ(why_not({{"mlx5_0", 2, {}}}), "mlx5_0: it has no port 2");
    EXPECT_EQ(why_not({{"mlx5_0", 1, 99}}), "mlx5_0:1: GID 99 is empty");
    const std::string both = why_not({{"mlx5_0", {}, {}}, {"mlx5_7", {}, {}}, {"mlx5_8", {}, {}}});
    EXPECT_NE(both.find("mlx5_7"), both.npos);
    EXPECT_NE(both.find("mlx5_8"), both.npos);
}

TEST_F(RailChoiceTest, APinGoesBeforeAnAddress) {
    usual("mlx5_0", "eth0", "10.0.1.1");
    usual("mlx5_1", "eth1", "10.0.1.2");
    EXPECT_EQ(names({{"mlx5_1", {}, {}}}, {"10.0.1.1"}), Names{"mlx5_1:1:3"});
}

TEST_F(RailChoiceTest, OfTheAddressesWantedThoseThatAreHereServe) {
    usual("mlx5_0", "eth0", "10.0.1.1");
    usual("mlx5_1", "eth1", "10.0.1.2");
    const RailChoice choice = choose({}, {"10.0.1.2", "10.0.9.9", "mlx5_0", "10.0.1.2", "eth1", "nonsense"});
    ASSERT_EQ(choice.places.size(), 2u);
    EXPECT_EQ(choice.places[0].device, "mlx5_1");
    EXPECT_EQ(choice.places[1].device, "mlx5_0");
    ASSERT_EQ(choice.missing.size(), 2u);
    EXPECT_EQ(choice.missing[0], "10.0.9.9: no RoCE device has this address");
    EXPECT_NE(choice.missing[1].find("nonsense: no IP address"), std::string::npos);
    sysfs.state("mlx5_0", "1: DOWN");
    sysfs.write("class/infiniband/mlx5_1/ports/1/gid_attrs/types/3", "IB/RoCE v1\n");
    const std::string text = why_not({}, {"10.0.1.1", "10.0.1.2"});
    EXPECT_NE(text.find("10.0.1.1: mlx5_0:1: the port is DOWN"), text.npos) << text;
    EXPECT_NE(text.find("10.0.1.2: mlx5_1:1: GID 1 (10.0.1.2) is IB/RoCE v1"), text.npos) << text;
}

TEST_F(RailChoiceTest, AnAddressMayNameItsZone) {
    sysfs.netdev("eth0", "fe80::1");
    sysfs.device("mlx5_0", "mlx5_core");
    sysfs.gid("mlx5_0", 3, kernel_gid("fe80::1"), "eth0");
    EXPECT_EQ(names({}, {"fe80::1%eth0"}), Names{"mlx5_0:1:3"});
}

TEST(InterfaceAddresses, KnowsTheLoopback) {
    const AddressesByInterface addresses = interface_addresses();
    const auto found = addresses.find("lo");
    ASSERT_NE(found, addresses.end());
    EXPECT_NE(std::find(found->second.begin(), found->second.end(), gid_of_text("127.0.0.1")), found->second.end());
}

TEST(Inventory, OfAnEmptyMachine) {
    const Inventory inventory = read_inventory("/nowhere", {});
    EXPECT_TRUE(inventory.devices.empty());
    EXPECT_TRUE(inventory.netdevs.empty());
}

TEST(SocketAddress, HasFamilyAndScope) {
    const sockaddr_storage four = socket_address(gid_of_text("10.0.1.2"), 0);
    EXPECT_EQ(four.ss_family, AF_INET);
    EXPECT_EQ(gid_of(reinterpret_cast<const sockaddr*>(&four)), gid_of_text("10.0.1.2"));
    const sockaddr_storage six = socket_address(gid_of_text("fe80::1"), 7);
    EXPECT_EQ(six.ss_family, AF_INET6);
    EXPECT_EQ(gid_of(reinterpret_cast<const sockaddr*>(&six)), gid_of_text("fe80::1"));
    EXPECT_EQ(reinterpret_cast<const sockaddr_in6*>(&six)->sin6_scope_id, 7u);
}

}  // namespace
}  // namespace s3verbs
