#include "verbs/rc_listener.h"

#include <cerrno>
#include <csignal>
#include <thread>

#include "bench.h"
#include "verbs/handshake.h"

namespace s3verbs {
namespace {

std::vector<std::uint8_t> bytes(const Greeting& greeting) {
    return {greeting.begin(), greeting.end()};
}

class RcListenerTest : public Bench {
protected:
    RcListenerTest() : Bench("rxe0", "rxe", "rxe1", "rxe") {
        for (const char* device : {"rxe0", "rxe1"}) {
            rails.push_back(std::make_unique<Rail>(machine(), place(device)));
        }
    }

    void TearDown() override {
        listener.reset();
        rails.clear();
        Bench::TearDown();
    }

    RcListener& listen(std::size_t most = max_connections) {
        listener = std::make_unique<RcListener>(api, rails, nonce, most);
        return *listener;
    }

    std::shared_ptr<Caller> call(const std::string& device, std::uint8_t reads = 16) {
        return verbs.connect(device, bytes(connect_request(nonce)), reads);
    }

    const Secret nonce = random_nonce();
    Rails rails;
    std::unique_ptr<RcListener> listener;
};

TEST_F(RcListenerTest, ATokenNamesThePortAndTheGidOfItsRail) {
    listen();
    EXPECT_EQ(listener->kind(), TransportKind::rc);
    for (const auto& rail : rails) {
        const std::uint16_t port = verbs.port_of(rail->place().device);
        EXPECT_NE(port, 0);
        EXPECT_EQ(listener->token(*rail, 0x1234, 77, 0xabcd),
                  rc_token(0x1234, 77, 0xabcd, port, rail->place().gid, nonce));
    }
}

TEST_F(RcListenerTest, AServerWithTheNonceIsAcceptedWithTheProof) {
    listen();
    const auto caller = call("rxe1", 7);
    ASSERT_TRUE(caller->accepted);
    EXPECT_EQ(caller->reply, bytes(accept_reply(nonce)));
    EXPECT_EQ(caller->answer.responder_resources, 7);
    EXPECT_EQ(caller->answer.initiator_depth, 0);
    EXPECT_EQ(listener->connections(), 1u);

    const std::vector<Step> steps = verbs.steps(caller->answer.qp_num);
    ASSERT_EQ(steps.size(), 3u);
    EXPECT_EQ(steps[0].attributes.qp_state, IBV_QPS_INIT);
    EXPECT_EQ(steps[0].attributes.qp_access_flags, unsigned{IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE});
    EXPECT_EQ(steps[0].mask, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT);
    EXPECT_EQ(steps[1].attributes.qp_state, IBV_QPS_RTR);
    EXPECT_EQ(steps[1].attributes.max_dest_rd_atomic, 7);
    EXPECT_EQ(steps[1].attributes.dest_qp_num, 0x77u) << "rdma_cm's attributes are kept";
    EXPECT_EQ(steps[1].mask & ~((1 << 21) - 1), 0) << "bits that libibverbs does not know are left out";
    EXPECT_EQ(steps[2].attributes.qp_state, IBV_QPS_RTS);
    EXPECT_EQ(steps[2].attributes.max_rd_atomic, 0);

    verbs.event(&caller->id, RDMA_CM_EVENT_ESTABLISHED);
    EXPECT_EQ(listener->connections(), 1u);
}

TEST_F(RcListenerTest, NoMoreReadsThanTheDeviceServes) {
    rails.clear();
    verbs.max_reads = 4;
    rails.push_back(std::make_unique<Rail>(machine(), place("rxe0")));
    listen();
    const auto caller = call("rxe0", 128);
    EXPECT_EQ(caller->answer.responder_resources, 4);
    EXPECT_EQ(verbs.steps(caller->answer.qp_num).at(1).attributes.max_dest_rd_atomic, 4);
}

TEST_F(RcListenerTest, AServerWithoutTheNonceIsRefused) {
    listen();
    const auto right = bytes(connect_request(nonce));
    auto wrong = right;
    wrong.back() ^= 1;
    auto version = right;
    version[4] = 2;
    const std::vector<std::vector<std::uint8_t>> others = {
        {}, wrong, version, {right.begin(), right.end() - 1}, bytes(accept_reply(nonce)), bytes(connect_request({}))};
    for (const auto& data : others) {
        const auto caller = verbs.connect("rxe0", data);
        EXPECT_TRUE(caller->rejected);
        EXPECT_TRUE(caller->destroyed);
        EXPECT_FALSE(caller->accepted);
    }
    EXPECT_EQ(listener->refused(), others.size());
    EXPECT_EQ(listener->connections(), 0u);
    EXPECT_TRUE(call("rxe0")->accepted);
}

TEST_F(RcListenerTest, ARequestThroughAnotherDeviceIsRefused) {
    listen();
    const auto caller = verbs.connect("rxe0", bytes(connect_request(nonce)), 16, "rxe1");
    EXPECT_TRUE(caller->rejected);
    EXPECT_EQ(verbs.alive()["qp"], 0);
}

TEST_F(RcListenerTest, OneConnectionMoreThanTheBoundEndsTheOldest) {
    listen(3);
    std::vector<std::shared_ptr<Caller>> callers;
    for (int i = 0; i < 3; ++i) {
        callers.push_back(call("rxe0"));
    }
    callers.push_back(call("rxe1"));
    EXPECT_TRUE(callers[0]->destroyed);
    EXPECT_FALSE(callers[1]->destroyed);
    callers.push_back(call("rxe1"));
    EXPECT_TRUE(callers[1]->destroyed);
    EXPECT_EQ(listener->connections(), 3u);
    EXPECT_EQ(verbs.alive()["qp"], 3);
}

TEST_F(RcListenerTest, AnEndFreesTheConnection) {
    listen();
    for (const auto type : {RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_UNREACHABLE,
                            RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_DEVICE_REMOVAL}) {
        const auto caller = call("rxe0");
        verbs.event(&caller->id, type);
        // The event is taken before it is acted upon; the next one is taken after.
        EXPECT_TRUE(call("rxe1")->accepted);
        EXPECT_TRUE(caller->destroyed) << type;
    }
    EXPECT_EQ(listener->connections(), 5u);
}

TEST_F(RcListenerTest, AServerThatCannotBeAnsweredLetsTheRailRest) {
    listen();
    const auto caller = call("rxe0");
    verbs.event(&caller->id, RDMA_CM_EVENT_UNREACHABLE);
    call("rxe1");
    EXPECT_FALSE(rails[0]->is_fit());
    EXPECT_TRUE(rails[1]->is_fit());
}

TEST_F(RcListenerTest, ARemovedDeviceEndsItsConnectionsAndNoOthers) {
    listen();
    const auto first = call("rxe0");
    const auto second = call("rxe1");
    verbs.event_of_listener("rxe0", RDMA_CM_EVENT_DEVICE_REMOVAL);
    EXPECT_TRUE(call("rxe1")->accepted);
    EXPECT_TRUE(rails[0]->is_removed());
    EXPECT_FALSE(rails[1]->is_removed());
    EXPECT_TRUE(first->destroyed);
    EXPECT_FALSE(second->destroyed);
    EXPECT_THROW(call("rxe0"), std::runtime_error);
}

TEST_F(RcListenerTest, AConnectionThatCannotBeMadeIsRefusedAndLeavesNothing) {
    listen();
    const int before = verbs.alive()["id"];
    for (const char* step : {"create_qp:rxe0", "init_qp_attr:rxe0", "modify_qp:rxe0"}) {
        verbs.fail({{step, ENOMEM}});
        const auto caller = call("rxe0");
        EXPECT_TRUE(caller->rejected) << step;
        EXPECT_EQ(verbs.alive()["qp"], 0) << step;
        EXPECT_EQ(verbs.alive()["id"], before) << step;
    }
    verbs.fail({});
    EXPECT_TRUE(call("rxe0")->accepted);
}

TEST_F(RcListenerTest, AnEventChannelThatFailsForAWhileIsAskedAgain) {
    listen();
    verbs.fail({{"get_cm_event", EIO}});
    std::thread mend([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        verbs.fail({});
    });
    EXPECT_TRUE(call("rxe0")->accepted);
    mend.join();
}

TEST_F(RcListenerTest, WhatCannotBeListenedOnIsSaidAndLeavesNothing) {
    const std::pair<const char*, const char*> calls[] = {{"create_event_channel", "modprobe rdma_ucm"},
                                                         {"create_id", "rdma_create_id"},
                                                         {"bind_addr", "rxe1:1:3 (10.0.1.2 on eth2): rdma_bind_addr"},
                                                         {"listen", "rdma_listen"}};
    const auto before = verbs.alive();
    for (const auto& [call, part] : calls) {
        verbs.fail({{call, ENODEV}});
        const std::string text = reason([&] { listen(); });
        EXPECT_TRUE(has(text, part)) << text;
        EXPECT_EQ(verbs.alive(), before);
    }
}

TEST_F(RcListenerTest, ARailThatCannotBeListenedOnIsLeftOut) {
    verbs.fail({{"bind_addr:rxe1", EADDRNOTAVAIL}});
    listen();
    EXPECT_TRUE(listener->listens_on(*rails[0]));
    EXPECT_FALSE(listener->listens_on(*rails[1]));
    ASSERT_EQ(listener->reasons().size(), 1u);
    EXPECT_TRUE(has(listener->reasons()[0], "rxe1:1:3 (10.0.1.2 on eth2): rdma_bind_addr")) << listener->reasons()[0];
    EXPECT_TRUE(call("rxe0")->accepted);
}

TEST_F(RcListenerTest, TheHostsSignalsDoNotGoToItsThread) {
    listen();
    sigset_t mine;
    pthread_sigmask(SIG_SETMASK, nullptr, &mine);
    EXPECT_EQ(sigismember(&mine, SIGUSR1), 0) << "the caller's own mask is as it was";
    std::string blocked;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string name;
        std::getline(std::ifstream(task.path() / "comm"), name);
        std::ifstream status(task.path() / "status");
        for (std::string line; name == "s3verbs-rdma" && std::getline(status, line);) {
            if (line.compare(0, 7, "SigBlk:") == 0) {
                blocked = line.substr(8);
            }
        }
    }
    ASSERT_FALSE(blocked.empty());
    EXPECT_NE(std::stoull(blocked, nullptr, 16) & (1ull << (SIGUSR1 - 1)), 0u);
}

}  // namespace
}  // namespace s3verbs
