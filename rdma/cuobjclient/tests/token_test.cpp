#include "token.h"

#include <gtest/gtest.h>

namespace s3verbs {
namespace {

// ::ffff:127.0.0.1, as RoCE v2 has it.
constexpr Gid loopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
constexpr Secret secret{0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff};

TEST(Token, OfDcIsTheExampleOfTheWireFormat) {
    EXPECT_EQ(dc_token(0x7f1dc46fd010, 0x100000, 0xabcd, 0, 0x1234, loopback),
              "00007f1dc46fd010:00100000:0000abcd:0000:001234:1:00000000000000000000ffff7f000001");
}

TEST(Token, OfDcHasRoomForTheLargestOfEveryField) {
    Gid gid;
    gid.fill(0xff);
    const auto token = dc_token(UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT16_MAX, 0xffffff, gid);
    EXPECT_EQ(token, "ffffffffffffffff:ffffffff:ffffffff:ffff:ffffff:1:" + std::string(32, 'f'));
    EXPECT_EQ(token.size(), 81U);
}

TEST(Token, OfRcHasThePortAndTheNonce) {
    EXPECT_EQ(rc_token(0x1000, 0x20, 0x99, 65535, loopback, secret),
              "0000000000001000:00000020:00000099:0000:00ffff:1:00000000000000000000ffff7f000001"
              ":rc1:00112233445566778899aabbccddeeff");
}

TEST(Token, OfSamehostHasNothingOfADevice) {
    EXPECT_EQ(samehost_token(0x7fffffffe000, 4096, secret),
              "00007fffffffe000:00001000:00000000:0000:000000:0:00000000000000000000000000000000"
              ":cma1:00112233445566778899aabbccddeeff");
}

}  // namespace
}  // namespace s3verbs
