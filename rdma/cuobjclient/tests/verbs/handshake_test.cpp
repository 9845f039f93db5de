#include "verbs/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "verbs/sha256.h"

namespace s3verbs {
namespace {

std::string hex(const std::uint8_t* data, std::size_t size) {
    std::string text;
    char byte[3];
    for (std::size_t i = 0; i < size; ++i) {
        std::snprintf(byte, sizeof byte, "%02x", static_cast<unsigned>(data[i]));
        text += byte;
    }
    return text;
}

std::string sha256_hex(const std::string& text) {
    const Digest digest = sha256(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    return hex(digest.data(), digest.size());
}

std::string hmac_hex(const std::string& key, const std::string& text) {
    const Digest digest = hmac_sha256(reinterpret_cast<const std::uint8_t*>(key.data()), key.size(),
                                      reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    return hex(digest.data(), digest.size());
}

// NIST's examples for FIPS 180-4.
TEST(Sha256, PublishedVectors) {
    EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(sha256_hex("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmno"
                         "pqrsmnopqrstnopqrstu"),
              "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    EXPECT_EQ(sha256_hex(std::string(1000000, 'a')),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Around the ends of a block, where the padding changes; from Python's hashlib.
TEST(Sha256, LengthsAroundABlock) {
    EXPECT_EQ(sha256_hex(std::string(55, 'x')), "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
    EXPECT_EQ(sha256_hex(std::string(56, 'x')), "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
    EXPECT_EQ(sha256_hex(std::string(63, 'x')), "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2");
    EXPECT_EQ(sha256_hex(std::string(64, 'x')), "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
    EXPECT_EQ(sha256_hex(std::string(65, 'x')), "9537c5fdf120482f7d58d25e9ed583f52c02b4e304ea814db1633ad565aed7e9");
}

// RFC 4231, cases 1, 2, 3 and 6.
TEST(HmacSha256, PublishedVectors) {
    EXPECT_EQ(hmac_hex(std::string(20, '\x0b'), "Hi There"),
              "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    EXPECT_EQ(hmac_hex("Jefe", "what do ya want for nothing?"),
              "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    EXPECT_EQ(hmac_hex(std::string(20, '\xaa'), std::string(50, '\xdd')),
              "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    EXPECT_EQ(hmac_hex(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
              "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

Secret counting_nonce() {
    Secret nonce;
    for (std::size_t i = 0; i < nonce.size(); ++i) {
        nonce[i] = static_cast<std::uint8_t>(i);
    }
    return nonce;
}

// The second from the server's own implementation, rdma/handshake.py.
TEST(Handshake, BytesOfTheWireFormat) {
    const Greeting request = connect_request(counting_nonce());
    EXPECT_EQ(hex(request.data(), request.size()), "5333525601000102030405060708090a0b0c0d0e0f");
    const Greeting reply = accept_reply(counting_nonce());
    EXPECT_EQ(hex(reply.data(), reply.size()), "53335256017b389e4db285f224592490e90ab606a6");
}

TEST(Handshake, OnlyTheNonceOpens) {
    const Secret nonce = counting_nonce();
    const Greeting right = connect_request(nonce);
    std::vector<std::uint8_t> padded(right.begin(), right.end());
    padded.resize(56);
    EXPECT_TRUE(is_connect_request(padded.data(), padded.size(), nonce));
    EXPECT_TRUE(is_connect_request(right.data(), right.size(), nonce));
    EXPECT_FALSE(is_connect_request(right.data(), right.size() - 1, nonce));
    EXPECT_FALSE(is_connect_request(nullptr, 0, nonce));
    for (std::size_t bit = 0; bit < 8 * right.size(); ++bit) {
        Greeting wrong = right;
        wrong[bit / 8] = static_cast<std::uint8_t>(wrong[bit / 8] ^ 1u << bit % 8);
        EXPECT_FALSE(is_connect_request(wrong.data(), wrong.size(), nonce)) << bit;
    }
    const Greeting reply = accept_reply(nonce);
    EXPECT_FALSE(is_connect_request(reply.data(), reply.size(), nonce));
}

TEST(Handshake, NoncesAreRandom) {
    EXPECT_NE(random_nonce(), random_nonce());
    EXPECT_NE(random_nonce(), Secret{});
}

}  // namespace
}  // namespace s3verbs
