#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <set>

#include "fake_gateway.h"
#include "samehost/samehost_transport.h"
#include "support.h"

namespace s3verbs::samehost {
namespace {

using s3verbs::testing::CapturedLog;
using s3verbs::testing::eventually;
using s3verbs::testing::FakeGateway;
using s3verbs::testing::TemporaryDirectory;

constexpr std::chrono::milliseconds patience{300};

class SameHostTest : public ::testing::Test {
protected:
    void SetUp() override { start(); }
    void start() { gateway = std::make_unique<FakeGateway>(directory.path() + "/gateway.sock"); }
    std::shared_ptr<SameHostTransport> connect() {
        return std::make_shared<SameHostTransport>(Candidate{gateway->path(), true}, patience);
    }
    Memory memory(std::size_t offset = 0, std::size_t size = 4096) {
        Memory made;
        made.address = buffer.data() + offset;
        made.size = size;
        return made;
    }

    const CapturedLog log;
    const TemporaryDirectory directory;
    std::unique_ptr<FakeGateway> gateway;
    std::vector<char> buffer = std::vector<char>(65536);
};

TEST_F(SameHostTest, TokensNameTheSessionAndTheRange) {
    const auto transport = connect();
    EXPECT_EQ(transport->kind(), TransportKind::samehost);
    EXPECT_EQ(transport->describe(), gateway->path());
    const auto registration = transport->register_memory(memory());
    EXPECT_EQ(registration->device(), gateway->path());
    const auto token = registration->token(100, 200);
    EXPECT_TRUE(gateway->can_reach(token)) << token;
    EXPECT_EQ(token.size(), 81U + 38U);
    EXPECT_EQ(gateway->sessions(), 1U);
    EXPECT_THROW(registration->token(0, 0), std::out_of_range);
    EXPECT_THROW(registration->token(0, 4097), std::out_of_range);
    EXPECT_THROW(registration->token(4096, 1), std::out_of_range);
    EXPECT_THROW(registration->token(SIZE_MAX, 2), std::out_of_range);
}

TEST_F(SameHostTest, RevokingIsOverWhenTheGatewayHasLetGo) {
    const auto transport = connect();
    const auto registration = transport->register_memory(memory());
    const auto token = registration->token(0, 4096);
    EXPECT_TRUE(registration->revoke());
    EXPECT_EQ(gateway->regions(), 0U);
    EXPECT_FALSE(gateway->can_reach(token));
    EXPECT_TRUE(registration->revoke());
    EXPECT_THROW(registration->token(0, 1), TransportError);
    EXPECT_EQ(gateway->sessions(), 1U) << "the session goes on";
}

TEST_F(SameHostTest, ARegistrationThatGoesTakesItsMemoryBack) {
    const auto transport = connect();
    transport->register_memory(memory()).reset();
    EXPECT_EQ(gateway->regions(), 0U);
}

TEST_F(SameHostTest, RevokingIsUnsureWhileTheGatewayIsAtIt) {
    const auto transport = connect();
    const auto registration = transport->register_memory(memory());
    gateway->hold(true);
    const auto begun = Clock::now();
    EXPECT_FALSE(registration->revoke());
    EXPECT_GE(Clock::now() - begun, patience);
    EXPECT_LT(Clock::now() - begun, 10 * patience);
    gateway->hold(false);
    EXPECT_TRUE(registration->revoke());
}

TEST_F(SameHostTest, TokensOfOtherMemoryNeedNotWaitForARevocation) {
    const auto transport = connect();
    const auto slow = transport->register_memory(memory());
    const auto other = transport->register_memory(memory(8192));
    gateway->hold(true);
    std::atomic<bool> revoked{false};
    std::thread revoking([&] {
        slow->revoke();
        revoked = true;
    });
    int made = 0;
    while (!revoked) {
        EXPECT_TRUE(gateway->can_reach(other->token(0, 10)));
        ++made;
    }
    revoking.join();
    EXPECT_GT(made, 50);
    gateway->hold(false);
}

TEST_F(SameHostTest, ARestartedGatewayIsJoinedAgain) {
    const auto transport = connect();
    const auto registration = transport->register_memory(memory());
    const auto other = transport->register_memory(memory(8192));
    const auto before = registration->token(0, 10);
    gateway.reset();
    EXPECT_THROW(registration->token(0, 10), TransportError);
    start();
    const auto after = registration->token(0, 10);
    EXPECT_NE(before, after);
    EXPECT_TRUE(gateway->can_reach(after));
    EXPECT_FALSE(gateway->can_reach(before));
    EXPECT_EQ(gateway->regions(), 1U) << "the other is registered when its token is asked for";
    EXPECT_TRUE(other->revoke()) << "its gateway is gone with all its processes";
    EXPECT_TRUE(registration->revoke());
    EXPECT_EQ(gateway->regions(), 0U);
}

TEST_F(SameHostTest, AGatewayThatEndsInOrderIsAtNothing) {
    const auto transport = connect();
    const auto registration = transport->register_memory(memory());
    gateway->end_sessions(true);
    EXPECT_TRUE(registration->revoke());
}

TEST_F(SameHostTest, WhenTheConnectionEndsAWorkerMayStillBeAtIt) {
    const auto transport = connect();
    const auto registration = transport->register_memory(memory());
    gateway->end_sessions(false);
    EXPECT_FALSE(registration->revoke());
    gateway->close_lifeline();
    EXPECT_TRUE(registration->revoke()) << "no process of that gateway is left";
}

TEST_F(SameHostTest, OfLostSessionsEachMustBeQuiet) {
    const auto transport = connect();
    const auto registration = transport->register_memory(memory());
    gateway->end_sessions(false);
    ASSERT_TRUE(eventually([&] { return gateway->sessions() == 0; }));
    EXPECT_TRUE(gateway->can_reach(registration->token(0, 10))) << "in a new session";
    EXPECT_FALSE(registration->revoke()) << "the old one's workers";
    EXPECT_EQ(gateway->regions(), 0U);
    gateway->close_lifeline();
    EXPECT_TRUE(registration->revoke());
}

TEST_F(SameHostTest, RefusalsAreToldInTheGatewaysWords) {
    const auto transport = connect();
    gateway->follow([](const Message& message) -> std::optional<s3verbs::testing::Reply> {
        if (message.kind != Kind::register_memory) {
            return std::nullopt;
        }
        Message refused;
        refused.kind = Kind::refused;
        refused.serial = message.serial;
        refused.code = Refusal::full;
        refused.text = "a session has room\nfor 2 regions";
        return {{{encode(refused)}}};
    });
    try {
        transport->register_memory(memory());
        FAIL();
    } catch (const TransportError& error) {
        EXPECT_STREQ(error.what(), "a session has room?for 2 regions");
    }
    gateway->follow(nullptr);
    EXPECT_NO_THROW(transport->register_memory(memory())) << "the session goes on";
}

TEST_F(SameHostTest, AsksTheKernelForPermissionAndTriesOnceMore) {
    const auto transport = connect();
    int asked = 0;
    gateway->follow([&](const Message& message) -> std::optional<s3verbs::testing::Reply> {
        if (message.kind != Kind::register_memory || ++asked > 1) {
            return std::nullopt;
        }
        Message refused;
        refused.kind = Kind::refused;
        refused.serial = message.serial;
        refused.code = Refusal::not_permitted;
        return {{{encode(refused)}}};
    });
    EXPECT_NO_THROW(transport->register_memory(memory()));
    EXPECT_EQ(asked, 2);
}

TEST_F(SameHostTest, TakesNoMemoryOfAGpu) {
    const auto transport = connect();
    auto gpu = memory();
    gpu.type = MemoryType::device;
    EXPECT_THROW(transport->register_memory(gpu), TransportError);
    EXPECT_EQ(gateway->registrations(), 0U);
}

TEST_F(SameHostTest, ThousandsOfRegistrationsLeaveNothingBehind) {
    const auto transport = connect();
    const auto descriptors = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}); };
    transport->register_memory(memory()).reset();
    const auto before = descriptors();
    for (int round = 0; round < 3000; ++round) {
        const auto registration = transport->register_memory(memory(static_cast<std::size_t>(round % 8) * 4096));
        registration->token(0, 1);
    }
    EXPECT_EQ(gateway->regions(), 0U);
    EXPECT_EQ(descriptors(), before);
}

// -- where the socket is --

TEST(Location, PlacesAreTheDocuments) {
    const auto with = [](const char* runtime) {
        std::string all;
        for (const auto& place : directories([&](const char*) { return runtime; }, 1000)) {
            all += place.path + (place.is_private ? " " : "! ");
        }
        return all;
    };
    EXPECT_EQ(with("/run/user/1000"), "/run/user/1000/s3verbs /run/s3verbs! /tmp/s3verbs-1000 ");
    EXPECT_EQ(with(nullptr), "/run/s3verbs! /tmp/s3verbs-1000 ");
    EXPECT_EQ(with("relative"), "/run/s3verbs! /tmp/s3verbs-1000 ");
}

TEST(Location, FindsTheOneLiveGatewayAndRefusesToGuess) {
    const TemporaryDirectory directory;
    const std::vector<Directory> places{{"/no/such/place", true}, {directory.path(), true}};
    EXPECT_THROW(only_live_socket(places), TransportError);
    const std::string path = directory.path() + "/9000.sock";
    {
        const FakeGateway gateway(path);
        std::ofstream(directory.path() + "/readme.txt") << "no socket";
        EXPECT_EQ(only_live_socket(places).path, path);
        const FakeGateway second(directory.path() + "/9001.sock");
        try {
            only_live_socket(places);
            FAIL();
        } catch (const TransportError& error) {
            const std::string text = error.what();
            EXPECT_NE(text.find("S3VERBS_SOCKET"), text.npos);
            EXPECT_NE(text.find("9000.sock"), text.npos);
            EXPECT_NE(text.find("9001.sock"), text.npos);
        }
    }
    std::ofstream(path) << "a file in the place of a socket";
    EXPECT_THROW(only_live_socket(places), TransportError);
}

TEST(Location, BelievesOwnUserRootAndADirectorysOwnerWhereItMay) {
    const TemporaryDirectory directory;
    const Candidate named{directory.path() + "/9000.sock", true};
    const Candidate own{directory.path() + "/9000.sock", false};
    const uid_t stranger = 54321;
    for (const auto& candidate : {named, own}) {
        EXPECT_TRUE(is_trusted(candidate, 0));
        EXPECT_TRUE(is_trusted(candidate, geteuid()));
        EXPECT_FALSE(is_trusted(candidate, stranger));
    }
    if (geteuid() != 0) {
        GTEST_SKIP() << "only root can give a directory away";
    }
    ASSERT_EQ(chown(directory.path().c_str(), stranger, 0), 0);
    EXPECT_TRUE(is_trusted(named, stranger));
    EXPECT_FALSE(is_trusted(own, stranger));
    ASSERT_EQ(chmod(directory.path().c_str(), 0777), 0);
    EXPECT_FALSE(is_trusted(named, stranger)) << "others can write there";
}

TEST(Location, SaysWhyItCannotConnect) {
    EXPECT_FALSE(connect_to("/no/such/gateway.sock", 1));
    EXPECT_EQ(errno, ENOENT);
    EXPECT_FALSE(connect_to(std::string(200, 'x'), 1));
    EXPECT_EQ(errno, ENAMETOOLONG);
}

TEST(MakeSameHostTransport, TakesTheSocketThatIsNamed) {
    const TemporaryDirectory directory;
    const FakeGateway gateway(directory.path() + "/gateway.sock");
    Config config;
    config.socket = gateway.path();
    EXPECT_EQ(make_samehost_transport(config)->describe(), gateway.path());
    config.socket = "/no/such/gateway.sock";
    EXPECT_THROW(make_samehost_transport(config), TransportError);
}

}  // namespace
}  // namespace s3verbs::samehost
