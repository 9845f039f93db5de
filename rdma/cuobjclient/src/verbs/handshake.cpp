#include "verbs/handshake.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "transport.h"
#include "verbs/sha256.h"

namespace s3verbs {
namespace {

constexpr std::array<std::uint8_t, 5> magic = {'S', '3', 'R', 'V', 1};
constexpr std::array<std::uint8_t, 6> purpose = {'a', 'c', 'c', 'e', 'p', 't'};

Greeting greeting(const std::uint8_t* secret) {
    Greeting whole;
    std::copy_n(secret, whole.size() - magic.size(), std::copy(magic.begin(), magic.end(), whole.begin()));
    return whole;
}

}  // namespace

Greeting connect_request(const Secret& nonce) {
    return greeting(nonce.data());
}

Greeting accept_reply(const Secret& nonce) {
    return greeting(hmac_sha256(nonce.data(), nonce.size(), purpose.data(), purpose.size()).data());
}

bool is_connect_request(const std::uint8_t* data, std::size_t size, const Secret& nonce) {
    const Greeting expected = connect_request(nonce);
    if (size < expected.size())
        return false;
    // Volatile, so that no compiler ends the loop at the first difference.
    volatile std::uint8_t difference = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        difference = static_cast<std::uint8_t>(difference | (data[i] ^ expected[i]));
    }
    return difference == 0;
}

Secret random_nonce() {
    Secret nonce;
    if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
        throw TransportError(std::string("no random numbers from the kernel: ") + std::strerror(errno));
    }
    return nonce;
}

}  // namespace s3verbs
