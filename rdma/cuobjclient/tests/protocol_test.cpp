#include "samehost/protocol.h"

#include <gtest/gtest.h>

#include <random>

namespace s3verbs::samehost {
namespace {

const std::string secret_bytes = "0123456789abcdef";

Secret secret() {
    Secret made;
    std::copy(secret_bytes.begin(), secret_bytes.end(), made.begin());
    return made;
}

// Every kind as the document has it, byte by byte.
std::vector<std::pair<Message, std::string>> samples() {
    const auto message = [](Kind kind) {
        Message made;
        made.kind = kind;
        made.serial = 0x01020304;
        return made;
    };
    const auto header = [](char type) { return std::string("S3SH\1") + type + std::string("\0\0\4\3\2\1", 6); };
    const std::string handle("\x08\x07\x06\x05\x04\x03\x02\x01", 8);
    std::vector<std::pair<Message, std::string>> all;
    all.emplace_back(message(Kind::hello), header(1));
    for (const auto kind : {Kind::challenge, Kind::proof}) {
        auto made = message(kind);
        made.secret = secret();
        all.emplace_back(made, header(static_cast<char>(kind)) + secret_bytes);
    }
    auto session = message(Kind::session);
    session.secret = secret();
    session.regions = 0x0a0b0c0d;
    all.emplace_back(session, header(4) + secret_bytes + "\x0d\x0c\x0b\x0a");
    auto registering = message(Kind::register_memory);
    registering.address = 0x0102030405060708;
    registering.length = 0x1000;
    all.emplace_back(registering, header(5) + handle + std::string("\0\x10\0\0\0\0\0\0", 8));
    for (const auto kind : {Kind::registered, Kind::unregister, Kind::unregistered}) {
        auto made = message(kind);
        made.handle = 0x0102030405060708;
        all.emplace_back(made, header(static_cast<char>(kind)) + handle);
    }
    auto refused = message(Kind::refused);
    refused.code = Refusal::full;
    refused.text = "no room";
    all.emplace_back(refused, header(9) + std::string("\3\0", 2) + "no room");
    all.emplace_back(message(Kind::ended), header(10));
    return all;
}

Message decoded(const std::string& packet) {
    return decode(packet.data(), packet.size());
}

TEST(Protocol, IsTheDocumentsByteByByte) {
    for (const auto& [message, packet] : samples()) {
        EXPECT_EQ(encode(message), packet);
        EXPECT_TRUE(decoded(packet) == message) << static_cast<int>(message.kind);
    }
}

TEST(Protocol, EveryOtherLengthIsMalformed) {
    for (const auto& [message, packet] : samples()) {
        for (std::size_t size = 0; size < packet.size(); ++size) {
            if (message.kind == Kind::refused && size >= 14) {
                continue;  // Its text may have any length.
            }
            EXPECT_THROW(decoded(packet.substr(0, size)), MalformedMessage);
        }
        if (message.kind != Kind::refused) {
            EXPECT_THROW(decoded(packet + '\0'), MalformedMessage);
        }
    }
}

TEST(Protocol, EveryByteOfTheHeaderCounts) {
    for (const auto& [message, packet] : samples()) {
        for (const std::size_t at : {0, 1, 2, 3, 4, 6, 7}) {
            std::string other = packet;
            other[at] = static_cast<char>(other[at] + 1);
            EXPECT_THROW(decoded(other), MalformedMessage);
        }
        for (const char type : {'\0', '\x0b', '\xff'}) {
            std::string other = packet;
            other[5] = type;
            EXPECT_THROW(decoded(other), MalformedMessage);
        }
    }
}

TEST(Protocol, RefusalsAreBounded) {
    Message refused;
    refused.kind = Kind::refused;
    refused.code = Refusal::busy;
    refused.text = std::string(600, 'x');
    const std::string packet = encode(refused);
    EXPECT_EQ(packet.size(), largest_message);
    EXPECT_EQ(decoded(packet).text.size(), largest_text);
    EXPECT_THROW(decoded(packet + "x"), MalformedMessage);
    for (const char code : {'\0', '\x09'}) {
        std::string other = packet;
        other[12] = code;
        EXPECT_THROW(decoded(other), MalformedMessage);
    }
}

// What is taken for a message is exactly that message; everything else is refused.
TEST(Protocol, SurvivesAnyPacket) {
    std::mt19937 random(11);
    const auto all = samples();
    int taken = 0;
    for (int round = 0; round < 50000; ++round) {
        std::string packet = all[random() % all.size()].second;
        for (unsigned change = random() % 3; change != 0; --change) {
            if (random() % 4 == 0) {
                packet.resize(random() % 40);
            } else if (!packet.empty()) {
                packet[random() % packet.size()] = static_cast<char>(random() % 12);
            }
        }
        try {
            EXPECT_EQ(encode(decoded(packet)), packet);
            ++taken;
        } catch (const MalformedMessage& error) {
            EXPECT_STRNE(error.what(), "");
        }
    }
    EXPECT_GT(taken, 10000);
}

}  // namespace
}  // namespace s3verbs::samehost
