#include "samehost/protocol.h"

#include <cstring>

namespace s3verbs::samehost {

namespace {

constexpr char magic[] = {'S', '3', 'S', 'H'};
constexpr std::uint8_t version = 1;

template <typename Number>
void put(std::string& packet, Number value) {
    for (std::size_t byte = 0; byte < sizeof value; ++byte) {
        packet += static_cast<char>(static_cast<std::uint64_t>(value) >> 8 * byte & 0xff);
    }
}

// Takes fields from the front of a packet whose length is known to be enough, or says that it is not.
class Reader {
public:
    Reader(const char* packet, std::size_t size) : at_(packet), left_(size) {}

    template <typename Number>
    Number take() {
        need(sizeof(Number));
        std::uint64_t value = 0;
        for (std::size_t byte = 0; byte < sizeof(Number); ++byte) {
            value |= static_cast<std::uint64_t>(static_cast<unsigned char>(at_[byte])) << 8 * byte;
        }
        skip(sizeof(Number));
        return static_cast<Number>(value);
    }

    Secret take_secret() {
        Secret secret;
        need(secret.size());
        std::memcpy(secret.data(), at_, secret.size());
        skip(secret.size());
        return secret;
    }

    std::string take_rest() {
        if (left_ > largest_text) {
            throw MalformedMessage("its text is too long");
        }
        std::string rest(at_, left_);
        skip(left_);
        return rest;
    }

    void end() const {
        if (left_ != 0) {
            throw MalformedMessage("it is too long for its type");
        }
    }

private:
    void need(std::size_t size) const {
        if (left_ < size) {
            throw MalformedMessage("it is too short for its type");
        }
    }

    void skip(std::size_t size) {
        at_ += size;
        left_ -= size;
    }

    const char* at_;
    std::size_t left_;
};

}  // namespace

std::string encode(const Message& message) {
    std::string packet(magic, sizeof magic);
    put(packet, version);
    put(packet, static_cast<std::uint8_t>(message.kind));
    put(packet, std::uint16_t{0});
    put(packet, message.serial);
    const std::string secret(message.secret.begin(), message.secret.end());
    switch (message.kind) {
        case Kind::hello:
        case Kind::ended:
            break;
        case Kind::challenge:
        case Kind::proof:
            packet += secret;
            break;
        case Kind::session:
            packet += secret;
            put(packet, message.regions);
            break;
        case Kind::register_memory:
            put(packet, message.address);
            put(packet, message.length);
            break;
        case Kind::registered:
        case Kind::unregister:
        case Kind::unregistered:
            put(packet, message.handle);
            break;
        case Kind::refused:
            put(packet, static_cast<std::uint16_t>(message.code));
            packet += message.text.substr(0, largest_text);
            break;
    }
    return packet;
}

Message decode(const char* packet, std::size_t size) {
    Reader reader(packet, size);
    if (size < sizeof magic || std::memcmp(packet, magic, sizeof magic) != 0) {
        throw MalformedMessage("no message of the same-host protocol");
    }
    reader.take<std::uint32_t>();
    if (const auto spoken = reader.take<std::uint8_t>(); spoken != version) {
        throw MalformedMessage("version " + std::to_string(spoken) + " of the protocol; this side speaks 1");
    }
    const auto type = reader.take<std::uint8_t>();
    if (type < static_cast<std::uint8_t>(Kind::hello) || type > static_cast<std::uint8_t>(Kind::ended)) {
        throw MalformedMessage("a message of unknown type " + std::to_string(type));
    }
    if (reader.take<std::uint16_t>() != 0) {
        throw MalformedMessage("a message with reserved bits set");
    }
    Message message;
    message.kind = static_cast<Kind>(type);
    message.serial = reader.take<std::uint32_t>();
    switch (message.kind) {
        case Kind::hello:
        case Kind::ended:
            break;
        case Kind::challenge:
        case Kind::proof:
            message.secret = reader.take_secret();
            break;
        case Kind::session:
            message.secret = reader.take_secret();
            message.regions = reader.take<std::uint32_t>();
            break;
        case Kind::register_memory:
            message.address = reader.take<std::uint64_t>();
            message.length = reader.take<std::uint64_t>();
            break;
        case Kind::registered:
        case Kind::unregister:
        case Kind::unregistered:
            message.handle = reader.take<std::uint64_t>();
            break;
        case Kind::refused: {
            const auto code = reader.take<std::uint16_t>();
            if (code < 1 || code > static_cast<std::uint16_t>(Refusal::unavailable)) {
                throw MalformedMessage("a refusal with unknown code " + std::to_string(code));
            }
            message.code = static_cast<Refusal>(code);
            message.text = reader.take_rest();
            break;
        }
    }
    reader.end();
    return message;
}

}  // namespace s3verbs::samehost
