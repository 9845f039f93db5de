#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <set>
#include <thread>

#include "bench.h"

namespace s3verbs {
namespace {

class VerbsTransportTest : public Bench {
protected:
    VerbsTransportTest() : Bench("rxe0", "rxe", "rxe1", "rxe") {}

    // The GID of a token, as an address.
    static std::string address_of(const std::string& token) {
        Gid gid;
        const std::string text = token.substr(49, 32);
        for (std::size_t i = 0; i < gid.size(); ++i) {
            gid[i] = static_cast<std::uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
        }
        return address_text(gid);
    }

    static std::vector<std::string> turns(Registration& registration, int count) {
        std::vector<std::string> found;
        for (int i = 0; i < count; ++i) {
            found.push_back(address_of(registration.token(0, 1)));
        }
        return found;
    }

    // Until the listener's thread waits for events: it holds no lock then, which a forked child could find taken.
    static void wait_for_the_listener() {
        for (std::string state; state != "S";) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
                std::string pid, name, found;
                std::ifstream(task.path() / "stat") >> pid >> name >> found;
                state = name == "(s3verbs-rdma)" ? found : state;
            }
        }
    }

    using Addresses = std::vector<std::string>;
};

TEST_F(VerbsTransportTest, MemoryIsRegisteredOnEveryRailAndTokensTakeTurns) {
    const auto transport = open({});
    EXPECT_EQ(transport->kind(), TransportKind::rc);
    EXPECT_EQ(transport->describe(), "rxe0:1:3 (10.0.1.1 on eth1), rxe1:1:3 (10.0.1.2 on eth2)");
    const auto registration = transport->register_memory(memory());
    EXPECT_EQ(registration->device(), "rxe0, rxe1");
    EXPECT_EQ(verbs.alive()["mr"], 2);
    EXPECT_EQ(turns(*registration, 4), (Addresses{"10.0.1.1", "10.0.1.2", "10.0.1.1", "10.0.1.2"}));
    EXPECT_EQ(registration->token(0, 4096).substr(0, 35), "00007f0000001000:00001000:00001001:");
    EXPECT_EQ(registration->token(0x10, 0x20).substr(0, 35), "00007f0000001010:00000020:00001002:");
}

TEST_F(VerbsTransportTest, ATokenIsWithinTheMemory) {
    const auto transport = open({});
    const auto registration = transport->register_memory(memory(4096));
    EXPECT_NO_THROW(registration->token(4095, 1));
    const std::pair<std::size_t, std::size_t> outside[] = {{0, 0},    {0, 4097},     {4096, 1},
                                                           {1, 4096}, {SIZE_MAX, 2}, {2, SIZE_MAX}};
    for (const auto& [offset, size] : outside) {
        EXPECT_THROW(registration->token(offset, size), std::out_of_range) << offset << " " << size;
    }
}

TEST_F(VerbsTransportTest, ARailThatIsDownIsLeftOutWhileAnotherIsUp) {
    const auto transport = open({});
    const auto registration = transport->register_memory(memory());
    sysfs.state("rxe0", "1: DOWN");
    now += std::chrono::seconds(1);
    EXPECT_EQ(turns(*registration, 3), (Addresses{"10.0.1.2", "10.0.1.2", "10.0.1.2"}));
    sysfs.state("rxe1", "1: DOWN");
    now += std::chrono::seconds(1);
    const Addresses both = turns(*registration, 2);
    EXPECT_EQ(std::set<std::string>(both.begin(), both.end()).size(), 2u) << "with none up any may be tried";
    sysfs.state("rxe0", "4: ACTIVE");
    now += std::chrono::seconds(1);
    EXPECT_EQ(turns(*registration, 2), (Addresses{"10.0.1.1", "10.0.1.1"}));
}

TEST_F(VerbsTransportTest, ARemovedDeviceServesNoMore) {
    const auto transport = open({});
    const auto registration = transport->register_memory(memory());
    verbs.report("rxe0", IBV_EVENT_DEVICE_FATAL);
    now += std::chrono::seconds(1);
    EXPECT_EQ(turns(*registration, 2), (Addresses{"10.0.1.2", "10.0.1.2"}));
    const auto later = transport->register_memory(memory());
    EXPECT_EQ(later->device(), "rxe1");
    verbs.report("rxe1", IBV_EVENT_DEVICE_FATAL);
    now += std::chrono::seconds(1);
    EXPECT_TRUE(has(reason([&] { registration->token(0, 1); }), "were removed: rxe0, rxe1"));
    EXPECT_TRUE(has(reason([&] { transport->register_memory(memory()); }),
                    "rxe1:1:3 (10.0.1.2 on eth2): the device was removed"));
}

TEST_F(VerbsTransportTest, TheRegionsOfARemovedDeviceWentWithIt) {
    const auto transport = open({});
    auto registration = transport->register_memory(memory());
    verbs.report("rxe0", IBV_EVENT_DEVICE_FATAL);
    now += std::chrono::seconds(1);
    turns(*registration, 1);
    verbs.fail({{"dereg_mr:rxe0", EIO}});
    EXPECT_TRUE(registration->revoke());
    // The library's own object is lost with it.
    verbs.fail({});
    verbs.forget("mr", 1);
}

TEST_F(VerbsTransportTest, OneRailIsEnoughForARegistration) {
    const auto transport = open({});
    verbs.on_register = [](const AskedRegion& asked) { return asked.device == "rxe0" ? ENOMEM : 0; };
    const auto registration = transport->register_memory(memory());
    EXPECT_EQ(registration->device(), "rxe1");
    EXPECT_EQ(turns(*registration, 2), (Addresses{"10.0.1.2", "10.0.1.2"}));
    EXPECT_TRUE(has(logged.str(), "some devices only: rxe0:1:3"));
    verbs.on_register = [](const AskedRegion&) { return ENOMEM; };
    const std::string text = reason([&] { transport->register_memory(memory()); });
    EXPECT_TRUE(has(text, "rxe0:1:3")) << text;
    EXPECT_TRUE(has(text, "; rxe1:1:3")) << text;
    EXPECT_TRUE(has(text, "LimitMEMLOCK")) << text;
}

TEST_F(VerbsTransportTest, RevokedMemoryHasNoTokensAndNoRegions) {
    const auto transport = open({});
    const auto registration = transport->register_memory(memory());
    EXPECT_TRUE(registration->revoke());
    EXPECT_EQ(verbs.alive()["mr"], 0);
    EXPECT_TRUE(registration->revoke());
    EXPECT_EQ(reason([&] { registration->token(0, 1); }), "the memory is not registered any more");
}

TEST_F(VerbsTransportTest, ARegionThatTheDeviceKeepsCanBeTakenBackLater) {
    const auto transport = open({});
    const auto registration = transport->register_memory(memory());
    verbs.fail({{"dereg_mr:rxe1", EBUSY}});
    EXPECT_FALSE(registration->revoke());
    EXPECT_EQ(verbs.alive()["mr"], 1);
    EXPECT_THROW(registration->token(0, 1), TransportError);
    EXPECT_FALSE(registration->revoke());
    verbs.fail({});
    EXPECT_TRUE(registration->revoke());
    EXPECT_TRUE(has(logged.str(), "ibv_dereg_mr: Device or resource busy"));
}

TEST_F(VerbsTransportTest, AForkedChildLeavesWhatIsTheParentsAndMakesItsOwn) {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer ends a child whose thread has the id of one of its parent's";
#endif
    auto transport = open({});
    auto registration = transport->register_memory(memory());
    const std::string token = registration->token(0, 1);
    wait_for_the_listener();
    const pid_t child = fork();
    if (child == 0) {
        alarm(30);
        const auto before = verbs.alive();
        bool good = has(reason([&] { registration->token(0, 1); }), "forked");
        good = good && has(reason([&] { transport->register_memory(memory()); }), "forked");
        good = good && registration->revoke();
        registration.reset();
        transport.reset();
        good = good && verbs.alive() == before;
        auto own = open({});
        const std::string other = own->register_memory(memory())->token(0, 1);
        good = good && other.substr(86) != token.substr(86);
        own.reset();
        _exit(good && verbs.alive() == before ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_NO_THROW(registration->token(0, 1));
}

TEST_F(VerbsTransportTest, ManyThreadsRegisterAndTakeTokens) {
    const auto transport = open({});
    const auto shared = transport->register_memory(memory());
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
            for (int j = 0; j < 200; ++j) {
                const auto own = transport->register_memory(memory());
                own->token(0, 1);
                shared->token(0, 1);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(verbs.alive()["mr"], 2);
}

TEST_F(VerbsTransportTest, PinnedDevicesAllHaveToServe) {
    Config config;
    config.devices = {{"rxe1", {}, {}}};
    EXPECT_EQ(open(config)->describe(), "rxe1:1:3 (10.0.1.2 on eth2)");
    config.devices.push_back({"rxe0", {}, {}});
    verbs.fail({{"open_device:rxe0", EACCES}});
    EXPECT_TRUE(has(reason([&] { open(config); }), "rxe0:1:3 (10.0.1.1 on eth1): ibv_open_device: Permission denied"));
    EXPECT_EQ(open({})->describe(), "rxe1:1:3 (10.0.1.2 on eth2)") << "without pins those that open serve";
    EXPECT_TRUE(has(logged.str(), "not all devices can be used: rxe0"));
    verbs.fail({{"open_device", EACCES}});
    EXPECT_TRUE(has(reason([&] { open({}); }), "rxe1"));
}

TEST_F(VerbsTransportTest, ARailThatTakesNoConnectionsIsLeftOutUnlessItIsPinned) {
    verbs.fail({{"bind_addr:rxe0", EADDRNOTAVAIL}});
    auto transport = open({});
    EXPECT_EQ(transport->describe(), "rxe1:1:3 (10.0.1.2 on eth2)");
    EXPECT_TRUE(has(logged.str(), "not all devices take connections: rxe0"));
    EXPECT_FALSE(transport->register_memory(memory())->token(0, 4096).empty());
    transport.reset();
    Config config;
    config.devices = {{"rxe0", {}, {}}, {"rxe1", {}, {}}};
    EXPECT_TRUE(has(reason([&] { open(config); }), "rxe0:1:3 (10.0.1.1 on eth1): rdma_bind_addr"));
}

TEST_F(VerbsTransportTest, AddressesChooseTheRails) {
    Config config;
    config.rail_addresses = {"10.0.1.2", "10.0.1.77"};
    EXPECT_EQ(open(config)->describe(), "rxe1:1:3 (10.0.1.2 on eth2)");
    EXPECT_TRUE(has(logged.str(), "10.0.1.77: no RoCE device has this address"));
    config.rail_addresses = {"10.0.1.77"};
    EXPECT_EQ(reason([&] { open(config); }), "10.0.1.77: no RoCE device has this address");
}

TEST_F(VerbsTransportTest, OldKernelsAreToldOfForksNewOnesNeedNot) {
    open({});
    EXPECT_EQ(verbs.fork_inits, 0);
    verbs.fork_status = IBV_FORK_ENABLED;
    open({});
    EXPECT_EQ(verbs.fork_inits, 0);
    verbs.fork_status = IBV_FORK_DISABLED;
    open({});
    EXPECT_EQ(verbs.fork_inits, 1);
    verbs.fail({{"fork_init", EINVAL}});
    open({});
    EXPECT_TRUE(has(logged.str(), "ibv_fork_init"));
    api.is_fork_initialized = nullptr;
    open({});
    EXPECT_EQ(verbs.fork_inits, 3);
}

}  // namespace
}  // namespace s3verbs
