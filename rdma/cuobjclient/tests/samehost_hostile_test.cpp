// Gateways that speak wrongly, late, too much, or not at all: a clean error within the client's patience, and no leak.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <random>

#include "fake_gateway.h"
#include "samehost/samehost_transport.h"
#include "support.h"

namespace s3verbs::samehost {
namespace {

using s3verbs::testing::FakeGateway;
using s3verbs::testing::Reply;
using s3verbs::testing::TemporaryDirectory;

constexpr std::chrono::milliseconds patience{250};

Message answer_to(const Message& message, Kind kind) {
    Message answer;
    answer.kind = kind;
    answer.serial = message.serial;
    return answer;
}

long open_descriptors() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

class HostileTest : public ::testing::Test {
protected:
    // Replies to messages of that kind with what `make` makes of them.
    void reply(Kind kind, const std::function<Reply(const Message&)>& make) {
        gateway.follow([kind, make](const Message& message) {
            return message.kind == kind ? std::optional<Reply>(make(message)) : std::nullopt;
        });
    }
    std::shared_ptr<SameHostTransport> connect() {
        return std::make_shared<SameHostTransport>(Candidate{gateway.path(), true}, patience);
    }
    // Connecting, registering and asking for a token, until something fails; what was said.
    std::string attempt() {
        const auto begun = Clock::now();
        std::string said;
        try {
            connect()->register_memory(memory)->token(0, 1);
        } catch (const TransportError& error) {
            said = error.what();
        }
        EXPECT_LT(Clock::now() - begun, 20 * patience);
        return said;
    }

    const s3verbs::testing::CapturedLog log;
    const TemporaryDirectory directory;
    FakeGateway gateway{directory.path() + "/gateway.sock"};
    std::vector<char> buffer = std::vector<char>(4096);
    Memory memory = [this] {
        Memory made;
        made.address = buffer.data();
        made.size = buffer.size();
        return made;
    }();
};

TEST_F(HostileTest, Silence) {
    for (const auto kind : {Kind::hello, Kind::proof, Kind::register_memory}) {
        reply(kind, [](const Message&) { return Reply{}; });
        EXPECT_NE(attempt().find("does not answer"), std::string::npos);
    }
}

TEST_F(HostileTest, SilenceIsNotWaitedForByEveryCallAgain) {
    const auto transport = connect();
    const auto registration = transport->register_memory(memory);
    gateway.follow([](const Message&) { return Reply{}; });
    EXPECT_THROW(transport->register_memory(memory), TransportError);
    const auto begun = Clock::now();
    for (int call = 0; call < 20; ++call) {
        EXPECT_THROW(registration->token(0, 1), TransportError);
    }
    EXPECT_LT(Clock::now() - begun, 4 * patience);
    gateway.follow(nullptr);
    EXPECT_TRUE(registration->revoke()) << "what is registered can still be taken back in the old session";
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    EXPECT_NO_THROW(transport->register_memory(memory));
}

TEST_F(HostileTest, WrongAnswers) {
    const std::pair<Kind, Kind> wrong[] = {
        {Kind::hello, Kind::session},    {Kind::hello, Kind::registered},        {Kind::proof, Kind::challenge},
        {Kind::proof, Kind::registered}, {Kind::register_memory, Kind::session}, {Kind::register_memory, Kind::proof}};
    for (const auto& [question, kind] : wrong) {
        reply(question, [kind = kind](const Message& message) { return Reply{{encode(answer_to(message, kind))}}; });
        EXPECT_NE(attempt(), "") << static_cast<int>(question) << " " << static_cast<int>(kind);
    }
}

TEST_F(HostileTest, RefusalsAtEveryStep) {
    for (const auto kind : {Kind::hello, Kind::proof, Kind::register_memory}) {
        for (int code = 1; code <= 8; ++code) {
            reply(kind, [code](const Message& message) {
                auto refused = answer_to(message, Kind::refused);
                refused.code = static_cast<Refusal>(code);
                refused.text = "because";
                return Reply{{encode(refused)}, code > 4};
            });
            EXPECT_NE(attempt().find("because"), std::string::npos) << static_cast<int>(kind) << " " << code;
        }
    }
}

TEST_F(HostileTest, DeathAtEveryStep) {
    for (const auto kind : {Kind::hello, Kind::proof, Kind::register_memory}) {
        for (const bool in_order : {false, true}) {
            reply(kind, [in_order](const Message& message) {
                Reply reply{{}, true};
                if (in_order) {
                    auto ended = answer_to(message, Kind::ended);
                    ended.serial = 0;
                    reply.packets.push_back(encode(ended));
                }
                return reply;
            });
            EXPECT_NE(attempt(), "");
        }
    }
}

TEST_F(HostileTest, AnswersOfOthersAndAnswersThatWereNotAskedFor) {
    gateway.follow([](const Message& message) -> std::optional<Reply> {
        if (message.kind != Kind::register_memory) {
            return std::nullopt;
        }
        auto stranger = answer_to(message, Kind::registered);
        stranger.serial = message.serial + 1000;
        stranger.handle = 77;
        auto unasked = answer_to(message, Kind::unregistered);
        unasked.handle = 5;
        auto right = answer_to(message, Kind::registered);
        right.handle = 5;
        return Reply{{encode(stranger), encode(unasked), encode(right)}};
    });
    const auto transport = connect();
    const auto registration = transport->register_memory(memory);
    std::atomic<std::uint64_t> released{0};
    reply(Kind::unregister, [&](const Message& message) {
        released = message.handle;
        return Reply{};
    });
    EXPECT_FALSE(registration->revoke()) << "an UNREGISTERED from before it was asked for says nothing";
    EXPECT_EQ(released, 5U) << "the handle of the answer, not of the stranger";
    reply(Kind::unregister, [](const Message& message) {
        auto other = answer_to(message, Kind::unregistered);
        other.handle = message.handle + 1;
        return Reply{{encode(other)}};
    });
    const auto second = transport->register_memory(memory);
    EXPECT_FALSE(second->revoke()) << "an UNREGISTERED of another region says nothing";
    gateway.close_lifeline();
    gateway.end_sessions(true);
}

TEST_F(HostileTest, ARefusedReleaseIsNotSure) {
    reply(Kind::unregister, [](const Message& message) {
        auto refused = answer_to(message, Kind::refused);
        refused.code = Refusal::no_such_region;
        return Reply{{encode(refused)}};
    });
    const auto registration = connect()->register_memory(memory);
    EXPECT_FALSE(registration->revoke());
    gateway.end_sessions(true);
    EXPECT_TRUE(registration->revoke());
}

TEST_F(HostileTest, ManyDescriptorsWithEveryMessage) {
    const auto before = open_descriptors();
    gateway.follow([](const Message& message) -> std::optional<Reply> {
        if (message.kind == Kind::unregister) {
            return std::nullopt;
        }
        auto answer = answer_to(message, message.kind == Kind::hello   ? Kind::challenge
                                         : message.kind == Kind::proof ? Kind::session
                                                                       : Kind::registered);
        answer.handle = 1;
        return Reply{{encode(answer)}, false, 4};
    });
    for (int round = 0; round < 50; ++round) {
        EXPECT_EQ(attempt(), "");
    }
    gateway.follow(nullptr);
    EXPECT_TRUE(s3verbs::testing::eventually([&] { return open_descriptors() == before; }))
        << before << " then " << open_descriptors();
}

TEST_F(HostileTest, FloodsAreReadAndForgotten) {
    reply(Kind::register_memory, [](const Message& message) {
        Reply reply;
        for (int copy = 0; copy < 100; ++copy) {
            auto noise = answer_to(message, Kind::unregistered);
            noise.handle = static_cast<std::uint64_t>(copy);
            reply.packets.push_back(encode(noise));
        }
        auto right = answer_to(message, Kind::registered);
        right.handle = 1;
        reply.packets.push_back(encode(right));
        return reply;
    });
    EXPECT_EQ(attempt(), "");
}

TEST_F(HostileTest, TooLongEmptyAndForeignPackets) {
    const std::string packets[] = {std::string(5000, 'S'), "S", "HTTP/1.1 200 OK\r\n\r\n",
                                   std::string("S3SH\2\1\0\0\1\0\0\0", 12), std::string(514, '\0')};
    for (const auto kind : {Kind::hello, Kind::proof, Kind::register_memory}) {
        for (const auto& packet : packets) {
            reply(kind, [&](const Message&) { return Reply{{packet}}; });
            EXPECT_NE(attempt(), "");
        }
    }
}

// Any bytes in place of any answer: an error or, by chance, an answer. Never a crash, a hang or a leak.
TEST_F(HostileTest, AnyBytes) {
    const auto before = open_descriptors();
    std::mt19937 random(5);
    gateway.follow([&](const Message& message) -> std::optional<Reply> {
        if (random() % 2 == 0) {
            return std::nullopt;
        }
        auto answer = answer_to(message, static_cast<Kind>(random() % 10 + 1));
        answer.code = Refusal::full;
        std::string packet = encode(answer);
        for (unsigned change = random() % 3; change != 0; --change) {
            packet[random() % packet.size()] = static_cast<char>(random());
        }
        packet.resize(random() % 4 != 0 ? packet.size() : random() % 600);
        // An empty packet reads like the end of the connection.
        return Reply{{packet}, random() % 2 == 0, static_cast<int>(random() % 3)};
    });
    for (int round = 0; round < 60; ++round) {
        attempt();
    }
    gateway.follow(nullptr);
    gateway.end_sessions(true);
    EXPECT_TRUE(s3verbs::testing::eventually([&] { return open_descriptors() == before; }));
    EXPECT_EQ(attempt(), "");
}

}  // namespace
}  // namespace s3verbs::samehost
