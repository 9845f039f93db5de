#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "fake_gateway.h"
#include "s3verbs.h"
#include "support.h"

namespace s3verbs {
namespace {

using testing::FakeGateway;
using testing::TemporaryDirectory;
using testing::Variable;

class CInterfaceTest : public ::testing::Test {
protected:
    const testing::CapturedLog log;
    const TemporaryDirectory directory;
    FakeGateway gateway{directory.path() + "/gateway.sock"};
    const Variable socket{"S3VERBS_SOCKET", gateway.path()};
    const Variable quiet{"S3VERBS_LOG", "error"};
    std::vector<char> buffer = std::vector<char>(4096);
    char token[S3VERBS_TOKEN_SIZE] = "";
};

TEST_F(CInterfaceTest, RegistersAndGivesTokens) {
    ASSERT_EQ(s3verbs_init(), 0) << s3verbs_error();
    ASSERT_EQ(s3verbs_register(buffer.data(), buffer.size()), 0) << s3verbs_error();
    ASSERT_EQ(s3verbs_token(buffer.data() + 10, 20, token, sizeof token), 0) << s3verbs_error();
    EXPECT_TRUE(gateway.can_reach(token));
    s3verbs_counters counters;
    s3verbs_get_counters(&counters);
    EXPECT_EQ(counters.regions, 1U);
    EXPECT_EQ(counters.region_bytes, 4096U);
    EXPECT_EQ(counters.tokens, 1U);
    EXPECT_EQ(s3verbs_release(buffer.data()), 0);
    EXPECT_EQ(gateway.regions(), 0U);
    EXPECT_EQ(s3verbs_release(buffer.data()), 0);
    s3verbs_shutdown();
    s3verbs_get_counters(&counters);
    EXPECT_EQ(counters.tokens, 0U);
}

TEST_F(CInterfaceTest, ShutdownTakesBackWhatIsLeft) {
    ASSERT_EQ(s3verbs_init(), 0);
    ASSERT_EQ(s3verbs_init(), 0);
    ASSERT_EQ(s3verbs_register(buffer.data(), buffer.size()), 0);
    s3verbs_shutdown();
    EXPECT_EQ(gateway.regions(), 1U);
    s3verbs_shutdown();
    EXPECT_TRUE(testing::eventually([&] { return gateway.regions() == 0; }));
    s3verbs_shutdown();
}

TEST_F(CInterfaceTest, SaysWhatWentWrong) {
    EXPECT_EQ(s3verbs_register(buffer.data(), 1), -1);
    EXPECT_STREQ(s3verbs_error(), "s3verbs_init was not called");
    ASSERT_EQ(s3verbs_init(), 0);
    EXPECT_EQ(s3verbs_register(nullptr, 1), -1);
    EXPECT_NE(std::strlen(s3verbs_error()), 0U);
    EXPECT_EQ(s3verbs_token(buffer.data(), 1, token, sizeof token), -1);
    EXPECT_NE(std::strstr(s3verbs_error(), "not within one registration"), nullptr);
    ASSERT_EQ(s3verbs_register(buffer.data(), 1), 0);
    EXPECT_EQ(s3verbs_token(buffer.data(), 1, token, 119), -1);
    EXPECT_NE(std::strstr(s3verbs_error(), "no room"), nullptr);
    EXPECT_EQ(s3verbs_token(buffer.data(), 1, nullptr, 0), -1);
    EXPECT_EQ(s3verbs_token(buffer.data(), 1, token, 120), 0);
    std::string other = "nothing";
    std::thread([&] { other = s3verbs_error(); }).join();
    EXPECT_EQ(other, "") << "each thread has its own";
    s3verbs_get_counters(nullptr);
    s3verbs_shutdown();
}

TEST_F(CInterfaceTest, InitSaysWhyThereIsNoTransport) {
    const Variable nowhere("S3VERBS_SOCKET", "/no/such/gateway.sock");
    EXPECT_EQ(s3verbs_init(), -1);
    EXPECT_NE(std::strstr(s3verbs_error(), "/no/such/gateway.sock"), nullptr) << s3verbs_error();
    s3verbs_shutdown();
    const Variable wrong("S3VERBS_TRANSPORT", "fastest");
    EXPECT_EQ(s3verbs_init(), -1);
    EXPECT_NE(std::strstr(s3verbs_error(), "S3VERBS_TRANSPORT"), nullptr) << s3verbs_error();
    s3verbs_shutdown();
}

}  // namespace
}  // namespace s3verbs
