#include "registry.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "fake_transport.h"
#include "support.h"

namespace s3verbs {
namespace {

using testing::FakeRegistration;
using testing::FakeState;
using Release = Registry::Release;

class RegistryTest : public ::testing::Test {
protected:
    Registry::Make make(std::uintptr_t address, std::size_t size) {
        return [this, address, size] {
            state->on_register();
            Memory memory;
            memory.address = reinterpret_cast<void*>(address);
            memory.size = size;
            return std::make_unique<FakeRegistration>(state, memory);
        };
    }
    void add(std::uintptr_t address, std::size_t size, const void* owner = nullptr) {
        registry.add(owner, address, size, make(address, size));
    }
    std::string found(std::uintptr_t address, std::size_t size) {
        const auto registration = registry.find(address, size);
        return registration ? registration->registration->token(registration->offset, size) : "";
    }

    std::shared_ptr<FakeState> state = std::make_shared<FakeState>();
    Registry registry;
};

TEST_F(RegistryTest, CountsByAddress) {
    add(1000, 100);
    add(1000, 100);
    add(1000, 50);
    EXPECT_EQ(state->made, 1);
    EXPECT_EQ(registry.release(nullptr, 1000), Release::kept);
    EXPECT_EQ(registry.release(nullptr, 1000), Release::kept);
    EXPECT_EQ(state->revocations, 0);
    EXPECT_EQ(found(1000, 100), "1000+0:100");
    EXPECT_EQ(registry.release(nullptr, 1000), Release::released);
    EXPECT_EQ(state->revocations, 1);
    EXPECT_EQ(state->alive, 0);
    EXPECT_EQ(found(1000, 1), "");
    EXPECT_EQ(registry.release(nullptr, 1000), Release::unknown);
}

TEST_F(RegistryTest, FindsARangeOnlyWithinOneRegistration) {
    add(1000, 100);
    add(1100, 100);
    EXPECT_EQ(found(1000, 100), "1000+0:100");
    EXPECT_EQ(found(1099, 1), "1000+99:1");
    EXPECT_EQ(found(1100, 1), "1100+0:1");
    EXPECT_EQ(found(1050, 51), "");
    EXPECT_EQ(found(999, 1), "");
    EXPECT_EQ(found(1200, 1), "");
    EXPECT_EQ(found(1150, SIZE_MAX), "");
}

TEST_F(RegistryTest, PrefersTheNearestThatHasTheWholeRange) {
    add(1000, 1000);
    add(1200, 10);
    EXPECT_EQ(found(1205, 5), "1200+5:5");
    EXPECT_EQ(found(1205, 6), "1000+205:6");
    EXPECT_EQ(registry.release(nullptr, 1200), Release::released);
    EXPECT_EQ(found(1205, 5), "1000+205:5");
}

TEST_F(RegistryTest, MoreBytesAtTheSameAddressAreRegisteredBeside) {
    add(1000, 100);
    const auto old = registry.find(1000, 100);
    add(1000, 200);
    EXPECT_EQ(state->made, 2);
    EXPECT_EQ(found(1150, 50), "1000+150:50");
    EXPECT_NO_THROW(old->registration->token(0, 100)) << "tokens of the smaller one stay good";
    EXPECT_EQ(registry.gauges().regions, 2U);
    EXPECT_EQ(registry.release(nullptr, 1000), Release::kept);
    EXPECT_EQ(registry.release(nullptr, 1000), Release::released);
    EXPECT_EQ(state->revocations, 2);
}

TEST_F(RegistryTest, WhatCannotBeMadeLeavesNothing) {
    state->on_register = [] { throw TransportError("no"); };
    EXPECT_THROW(add(1000, 100), TransportError);
    EXPECT_EQ(registry.gauges().regions, 0U);
    EXPECT_EQ(registry.release(nullptr, 1000), Release::unknown);
    state->on_register = [] {};
    add(1000, 100);
    state->on_register = [] { throw TransportError("no"); };
    EXPECT_THROW(add(1000, 200), TransportError);
    EXPECT_EQ(found(1000, 100), "1000+0:100");
    EXPECT_EQ(registry.release(nullptr, 1000), Release::released);
}

TEST_F(RegistryTest, EachOwnerHasItsOwn) {
    const int first = 0;
    const int second = 0;
    add(1000, 100, &first);
    add(1000, 100, &second);
    add(2000, 100, &first);
    registry.release_all(&first);
    EXPECT_EQ(found(2000, 1), "");
    EXPECT_EQ(found(1000, 1), "1000+0:1");
    registry.release_all(&first);
    EXPECT_EQ(registry.release(&second, 1000), Release::released);
}

TEST_F(RegistryTest, ManyOfOneOwnerShareTheirPatience) {
    for (std::uintptr_t address = 1000; address < 1000 + 30; ++address) {
        add(address, 1);
    }
    state->sure = false;
    state->on_revoke = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1300)); };
    registry.release_all(nullptr);
    state->on_revoke = [] {};
    EXPECT_LE(state->revocations, 5);
    EXPECT_EQ(registry.gauges().quarantined, 30U);
    state->sure = true;
    EXPECT_EQ(registry.release(nullptr, 1000), Release::released);
    EXPECT_EQ(registry.gauges().quarantined, 29U);
}

TEST_F(RegistryTest, OneOwnerCanReleaseWhatAnotherRegistered) {
    const int first = 0;
    const int second = 0;
    add(1000, 100, &first);
    EXPECT_EQ(registry.release(&second, 1000), Release::released);
    registry.release_all(&first);
    EXPECT_EQ(state->revocations, 1);
}

TEST_F(RegistryTest, WhatIsUnsureStaysInQuarantineUntilItIsSure) {
    add(1000, 100);
    state->sure = false;
    EXPECT_EQ(registry.release(nullptr, 1000), Release::unsure);
    EXPECT_EQ(found(1000, 1), "") << "no token of released memory";
    EXPECT_EQ(registry.gauges().quarantined, 1U);
    EXPECT_EQ(registry.release(nullptr, 1000), Release::unsure);
    state->sure = true;
    EXPECT_EQ(registry.release(nullptr, 1000), Release::released);
    EXPECT_EQ(registry.gauges().quarantined, 0U);
    EXPECT_EQ(registry.release(nullptr, 1000), Release::unknown);
    EXPECT_EQ(state->alive, 0);
}

TEST_F(RegistryTest, NewRegistrationsLookAfterTheQuarantine) {
    add(1000, 100);
    state->sure = false;
    EXPECT_EQ(registry.release(nullptr, 1000), Release::unsure);
    state->sure = true;
    add(2000, 100);
    EXPECT_EQ(registry.gauges().quarantined, 0U);
}

TEST_F(RegistryTest, TheEndTakesAllBack) {
    {
        Registry other;
        other.add(nullptr, 1000, 100, make(1000, 100));
        other.add(nullptr, 2000, 100, make(2000, 100));
    }
    EXPECT_EQ(state->revocations, 2);
    EXPECT_EQ(state->alive, 0);
}

TEST_F(RegistryTest, TheEndKeepsWhatAServerMayTouch) {
    const testing::CapturedLog log;
    state->sure = false;
    {
        Registry other;
        other.add(nullptr, 1000, 100, make(1000, 100));
    }
    EXPECT_EQ(state->alive, 1);
    EXPECT_EQ(log.count("could not be taken back"), 1U);
}

TEST_F(RegistryTest, OtherMemoryNeedNotWaitForASlowTransport) {
    std::atomic<bool> slow{false};
    std::atomic<bool> go{false};
    state->on_register = [&] {
        if (slow) {
            slow = false;
            while (!go) {
                std::this_thread::yield();
            }
        }
    };
    add(1000, 100);
    slow = true;
    std::thread slow_one([&] { add(2000, 100); });
    std::thread same_address;
    ASSERT_TRUE(testing::eventually([&] { return !slow; }));
    same_address = std::thread([&] { add(2000, 100); });
    EXPECT_EQ(found(1000, 100), "1000+0:100");
    EXPECT_EQ(found(2000, 1), "");
    add(3000, 100);
    go = true;
    slow_one.join();
    same_address.join();
    state->on_register = [] {};
    EXPECT_EQ(state->made, 3) << "the second at that address waited, and found it registered";
    EXPECT_EQ(registry.release(nullptr, 2000), Release::kept);
    EXPECT_EQ(registry.release(nullptr, 2000), Release::released);
}

TEST_F(RegistryTest, RegisteringAnewWaitsForTheReleaseOfTheSameAddress) {
    std::atomic<bool> revoking{false};
    std::atomic<bool> go{false};
    add(1000, 100);
    state->on_revoke = [&] {
        revoking = true;
        while (!go) {
            std::this_thread::yield();
        }
    };
    std::thread releasing([&] { EXPECT_EQ(registry.release(nullptr, 1000), Release::released); });
    ASSERT_TRUE(testing::eventually([&] { return revoking.load(); }));
    EXPECT_EQ(found(1000, 1), "");
    std::thread adding([&] { add(1000, 100); });
    go = true;
    releasing.join();
    adding.join();
    state->on_revoke = [] {};
    EXPECT_EQ(state->made, 2);
    EXPECT_EQ(found(1000, 1), "1000+0:1");
}

// Against a model: random additions and releases of overlapping ranges.
TEST_F(RegistryTest, AgreesWithAModel) {
    std::mt19937 random(3);
    std::map<std::uintptr_t, std::pair<std::size_t, int>> model;  // largest size, count
    for (int step = 0; step < 20000; ++step) {
        const std::uintptr_t address = 1000 + random() % 50;
        switch (random() % 3) {
            case 0: {
                const std::size_t size = random() % 40 + 1;
                add(address, size);
                auto& entry = model[address];
                entry.first = std::max(entry.first, size);
                ++entry.second;
                break;
            }
            case 1: {
                const auto entry = model.find(address);
                const auto release = registry.release(nullptr, address);
                if (entry == model.end()) {
                    EXPECT_EQ(release, Release::unknown);
                } else if (--entry->second.second == 0) {
                    EXPECT_EQ(release, Release::released);
                    model.erase(entry);
                } else {
                    EXPECT_EQ(release, Release::kept);
                }
                break;
            }
            default: {
                const std::size_t size = random() % 40 + 1;
                std::uintptr_t nearest = 0;
                for (const auto& [start, entry] : model) {
                    if (start <= address && address + size <= start + entry.first) {
                        nearest = start;
                    }
                }
                const std::string expected = nearest == 0
                                                 ? ""
                                                 : std::to_string(nearest) + "+" + std::to_string(address - nearest) +
                                                       ":" + std::to_string(size);
                EXPECT_EQ(found(address, size), expected);
            }
        }
    }
}

}  // namespace
}  // namespace s3verbs
