// Registration against transfer in many threads, with a gateway that is restarted under them.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "cuobjclient.h"
#include "fake_gateway.h"
#include "process_engine.h"
#include "support.h"

namespace s3verbs {
namespace {

using testing::FakeGateway;
using testing::TemporaryDirectory;
using testing::Variable;

constexpr std::size_t thread_count = 6;
constexpr std::size_t block = 4096;

struct Check {
    const FakeGateway* gateway;
    std::atomic<int> reached{0};
    std::atomic<int> missed{0};
};

// The memory is registered while this runs, so the gateway must be able to reach it by the token.
ssize_t on_get(const void* handle, char*, size_t size, loff_t, const cufileRDMAInfo_t* info) {
    auto& check = *static_cast<Check*>(cuObjClient::getCtx(handle));
    ++(check.gateway->can_reach(info->desc_str) ? check.reached : check.missed);
    return static_cast<ssize_t>(size);
}

class StressTest : public ::testing::Test {
protected:
    const TemporaryDirectory directory;
    const Variable socket{"S3VERBS_SOCKET", directory.path() + "/gateway.sock"};
    const Variable quiet{"S3VERBS_LOG", "error"};
    CUObjOps_t ops{on_get, nullptr};
    std::vector<char> buffer = std::vector<char>(thread_count * block);
};

TEST_F(StressTest, RegistrationAgainstTransfer) {
    const FakeGateway gateway(directory.path() + "/gateway.sock");
    Check check{&gateway};
    {
        cuObjClient client(ops);
        std::vector<std::thread> threads;
        for (std::size_t index = 0; index < thread_count; ++index) {
            threads.emplace_back([&, index] {
                std::mt19937 random(static_cast<unsigned>(index));
                for (int round = 0; round < 400; ++round) {
                    // Neighbours share blocks: addresses are counted by several threads at once.
                    char* const start = buffer.data() + (index / 2) * block;
                    EXPECT_EQ(client.cuMemObjGetDescriptor(start, random() % 2 == 0 ? block : block / 2),
                              CU_OBJ_SUCCESS);
                    const std::size_t size = random() % (block / 2) + 1;
                    EXPECT_EQ(client.cuObjGet(&check, start, size), static_cast<ssize_t>(size));
                    char* token = nullptr;
                    EXPECT_EQ(client.cuMemObjGetRDMAToken(start, size, 0, CUOBJ_PUT, &token), CU_OBJ_SUCCESS);
                    client.cuMemObjPutRDMAToken(token);
                    EXPECT_EQ(client.cuMemObjPutDescriptor(start), CU_OBJ_SUCCESS);
                }
            });
        }
        for (auto& thread : threads) {
            thread.join();
        }
        EXPECT_EQ(process_engine()->snapshot().regions, 0U);
    }
    EXPECT_EQ(gateway.regions(), 0U);
    EXPECT_EQ(check.missed, 0);
    EXPECT_EQ(check.reached, static_cast<int>(thread_count) * 400);
}

TEST_F(StressTest, ClientsComeAndGo) {
    const FakeGateway gateway(directory.path() + "/gateway.sock");
    std::vector<std::thread> threads;
    for (std::size_t index = 0; index < 4; ++index) {
        threads.emplace_back([&, index] {
            for (int round = 0; round < 100; ++round) {
                Check check{&gateway};
                cuObjClient client(ops);
                char* const start = buffer.data() + index * block;
                EXPECT_EQ(client.cuMemObjGetDescriptor(start, block), CU_OBJ_SUCCESS);
                EXPECT_EQ(client.cuObjGet(&check, start, block), static_cast<ssize_t>(block));
                EXPECT_EQ(check.missed, 0);
            }
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(process_engine(), nullptr);
    EXPECT_TRUE(testing::eventually([&] { return gateway.sessions() == 0; }));
}

TEST_F(StressTest, TheGatewayIsRestartedUnderTransfers) {
    auto gateway = std::make_unique<FakeGateway>(directory.path() + "/gateway.sock");
    CUObjOps_t any{
        [](const void*, char*, size_t size, loff_t, const cufileRDMAInfo_t*) { return static_cast<ssize_t>(size); },
        nullptr};
    cuObjClient client(any);
    std::atomic<bool> stop{false};
    std::atomic<int> moved{0};
    std::vector<std::thread> threads;
    for (std::size_t index = 0; index < 4; ++index) {
        threads.emplace_back([&, start = buffer.data() + index * block] {
            while (!stop) {
                if (client.cuMemObjGetDescriptor(start, block) != CU_OBJ_SUCCESS) {
                    continue;
                }
                for (int transfer = 0; transfer < 5; ++transfer) {
                    moved += client.cuObjGet(&stop, start, 100) == 100;
                }
                EXPECT_EQ(client.cuMemObjPutDescriptor(start), CU_OBJ_SUCCESS);
            }
        });
    }
    for (int restart = 0; restart < 15; ++restart) {
        const int before = moved;
        EXPECT_TRUE(testing::eventually([&] { return moved > before + 20; })) << "after restart " << restart;
        gateway.reset();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        gateway = std::make_unique<FakeGateway>(directory.path() + "/gateway.sock");
    }
    stop = true;
    for (auto& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(gateway->regions(), 0U);
}

}  // namespace
}  // namespace s3verbs
