// A forked child uses nothing of its parent's, and works on its own.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "cuobjclient.h"
#include "descriptor.h"
#include "fake_gateway.h"
#include "s3verbs.h"
#include "support.h"

namespace s3verbs {
namespace {

using testing::FakeGateway;
using testing::TemporaryDirectory;
using testing::Variable;

// The number that `act` gives in a child, which then ends without destructors; -1 for a child that did not end so.
int in_child(const std::function<int()>& act) {
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        _exit(act());
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

ssize_t on_get(const void* handle, char*, size_t size, loff_t, const cufileRDMAInfo_t* info) {
    *static_cast<std::string*>(cuObjClient::getCtx(handle)) = info->desc_str;
    return static_cast<ssize_t>(size);
}

class ForkTest : public ::testing::Test {
protected:
    const TemporaryDirectory directory;
    FakeGateway gateway{directory.path() + "/gateway.sock"};
    const Variable socket{"S3VERBS_SOCKET", gateway.path()};
    const Variable quiet{"S3VERBS_LOG", "error"};
    std::vector<char> buffer = std::vector<char>(65536);
    CUObjOps_t ops{on_get, nullptr};
};

TEST_F(ForkTest, DescriptorsAreClosedInTheChild) {
    Descriptor kept(open("/dev/null", O_RDONLY));
    const int number = kept.get();
    EXPECT_EQ(in_child([&] {
                  if (fcntl(number, F_GETFD) != -1) {
                      return 1;
                  }
                  // A number that the child has used anew is not closed by the parent's object.
                  const int mine = open("/dev/null", O_RDONLY);
                  dup2(mine, number);
                  kept.close();
                  return fcntl(number, F_GETFD) == -1 ? 2 : 0;
              }),
              0);
    EXPECT_NE(fcntl(number, F_GETFD), -1);
}

TEST_F(ForkTest, TheChildHasASessionOfItsOwn) {
    cuObjClient client(ops);
    ASSERT_EQ(client.cuMemObjGetDescriptor(buffer.data(), buffer.size()), CU_OBJ_SUCCESS);
    std::string before;
    ASSERT_EQ(client.cuObjGet(&before, buffer.data(), 10), 10);
    EXPECT_EQ(in_child([&] {
                  std::string token;
                  if (client.cuObjGet(&token, buffer.data(), 10) >= 0) {
                      return 1;  // The parent's registration is of no use here.
                  }
                  if (client.cuMemObjPutDescriptor(buffer.data()) != CU_OBJ_SUCCESS) {
                      return 2;  // No server can touch this process's memory.
                  }
                  if (client.cuMemObjGetDescriptor(buffer.data(), 100) != CU_OBJ_SUCCESS) {
                      return 3;
                  }
                  if (client.cuObjGet(&token, buffer.data(), 10) != 10 || !client.isConnected()) {
                      return 4;
                  }
                  if (token.substr(81) == before.substr(81)) {
                      return 5;  // The same session.
                  }
                  return client.cuMemObjPutDescriptor(buffer.data()) == CU_OBJ_SUCCESS ? 0 : 6;
              }),
              0);
    EXPECT_TRUE(gateway.can_reach(before)) << "the parent's goes on";
    std::string after;
    EXPECT_EQ(client.cuObjGet(&after, buffer.data(), 10), 10);
    EXPECT_EQ(after, before);
    EXPECT_TRUE(testing::eventually([&] { return gateway.sessions() == 1; }));
}

TEST_F(ForkTest, TheChildCanEndInOrder) {
    auto client = std::make_unique<cuObjClient>(ops);
    ASSERT_EQ(client->cuMemObjGetDescriptor(buffer.data(), buffer.size()), CU_OBJ_SUCCESS);
    EXPECT_EQ(in_child([&] {
                  client.reset();
                  return 0;
              }),
              0);
    EXPECT_EQ(gateway.regions(), 1U);
    EXPECT_EQ(gateway.sessions(), 1U);
}

TEST_F(ForkTest, ForksWhileOtherThreadsAreAtWork) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the sanitizer's own allocator may be locked by a thread that the child does not have";
#endif
    cuObjClient client(ops);
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (std::size_t index = 0; index < 3; ++index) {
        threads.emplace_back([&, start = buffer.data() + index * 4096] {
            while (!stop) {
                std::string token;
                EXPECT_EQ(client.cuMemObjGetDescriptor(start, 4096), CU_OBJ_SUCCESS);
                EXPECT_EQ(client.cuObjGet(&token, start, 100), 100);
                EXPECT_EQ(client.cuMemObjPutDescriptor(start), CU_OBJ_SUCCESS);
            }
        });
    }
    for (int round = 0; round < 100; ++round) {
        EXPECT_EQ(in_child([&] {
                      std::string token;
                      char own[100];
                      if (client.cuMemObjGetDescriptor(own, sizeof own) != CU_OBJ_SUCCESS) {
                          return 1;
                      }
                      return client.cuObjGet(&token, own, 100) == 100 ? 0 : 2;
                  }),
                  0);
    }
    stop = true;
    for (auto& thread : threads) {
        thread.join();
    }
}

}  // namespace
}  // namespace s3verbs
