// Messages between a same-host client and the gateway. Pure. Source: docs/samehost-protocol.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "token.h"

namespace s3verbs::samehost {

enum class Kind : std::uint8_t {
    hello = 1,
    challenge = 2,
    proof = 3,
    session = 4,
    register_memory = 5,
    registered = 6,
    unregister = 7,
    unregistered = 8,
    refused = 9,
    ended = 10,
};

// After the first four the session goes on.
enum class Refusal : std::uint16_t {
    none = 0,
    not_permitted = 1,
    bad_range = 2,
    full = 3,
    no_such_region = 4,
    identity = 5,
    malformed = 6,
    busy = 7,
    unavailable = 8,
};

constexpr std::size_t largest_text = 500;
constexpr std::size_t largest_message = 12 + 2 + largest_text;

// Which of the fields count is up to `kind`; the others are as they are here.
struct Message {
    Kind kind = Kind::hello;
    std::uint32_t serial = 0;
    Secret secret{};            // challenge, proof: the nonce; session: its id
    std::uint32_t regions = 0;  // session: how many it can have
    std::uint64_t address = 0;  // register_memory
    std::uint64_t length = 0;   // register_memory
    std::uint64_t handle = 0;   // registered, unregister, unregistered
    Refusal code = Refusal::none;
    std::string text;  // refused, UTF-8 as the gateway wrote it

    friend bool operator==(const Message& a, const Message& b) {
        return a.kind == b.kind && a.serial == b.serial && a.secret == b.secret && a.regions == b.regions &&
               a.address == b.address && a.length == b.length && a.handle == b.handle && a.code == b.code &&
               a.text == b.text;
    }
};

// The packet is none of the protocol.
class MalformedMessage : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// One packet. A text that is too long is cut.
std::string encode(const Message& message);

// Throws MalformedMessage: another magic, version, type, code or length, or reserved bits set.
Message decode(const char* packet, std::size_t size);

}  // namespace s3verbs::samehost
