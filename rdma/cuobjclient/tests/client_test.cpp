#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "cuobjclient.h"
#include "fake_gateway.h"
#include "process_engine.h"
#include "support.h"

namespace s3verbs {
namespace {

using testing::CapturedLog;
using testing::eventually;
using testing::FakeGateway;
using testing::TemporaryDirectory;
using testing::Variable;

static_assert(sizeof(cuObjClient) == sizeof(void*), "callers reserve the room for the object by their own header");

// What a callback was given.
struct Transfer {
    std::string operation;
    const char* start = nullptr;
    size_t size = 0;
    loff_t offset = 0;
    std::string token;
    ssize_t result = 0;
};

Transfer& note(const void* handle, const char* operation, const char* start, size_t size, loff_t offset,
               const cufileRDMAInfo_t* info) {
    auto& transfer = *static_cast<Transfer*>(cuObjClient::getCtx(handle));
    transfer.operation = operation;
    transfer.start = start;
    transfer.size = size;
    transfer.offset = offset;
    EXPECT_EQ(std::strlen(info->desc_str), static_cast<size_t>(info->desc_len));
    transfer.token = info->desc_str;
    return transfer;
}

ssize_t on_get(const void* handle, char* start, size_t size, loff_t offset, const cufileRDMAInfo_t* info) {
    return note(handle, "get", start, size, offset, info).result;
}

ssize_t on_put(const void* handle, const char* start, size_t size, loff_t offset, const cufileRDMAInfo_t* info) {
    return note(handle, "put", start, size, offset, info).result;
}

class ClientTest : public ::testing::Test {
protected:
    const CapturedLog log;
    const TemporaryDirectory directory;
    std::unique_ptr<FakeGateway> gateway = std::make_unique<FakeGateway>(directory.path() + "/gateway.sock");
    const Variable socket{"S3VERBS_SOCKET", gateway->path()};
    const Variable quiet{"S3VERBS_LOG", "error"};
    CUObjOps_t ops{on_get, on_put};
    std::vector<char> buffer = std::vector<char>(65536);
};

TEST_F(ClientTest, CallsBackWithATokenForTheRange) {
    cuObjClient client(ops);
    ASSERT_TRUE(client.isConnected());
    ASSERT_EQ(client.cuMemObjGetDescriptor(buffer.data(), buffer.size()), CU_OBJ_SUCCESS);
    Transfer transfer;
    transfer.result = 4096;
    EXPECT_EQ(client.cuObjGet(&transfer, buffer.data() + 512, 4096, 7), 4096);
    EXPECT_EQ(transfer.operation, "get");
    EXPECT_EQ(transfer.start, buffer.data() + 512);
    EXPECT_EQ(transfer.size, 4096U);
    EXPECT_EQ(transfer.offset, 7);
    EXPECT_TRUE(gateway->can_reach(transfer.token));
    EXPECT_EQ(client.cuObjPut(&transfer, buffer.data(), 100, 0, 1000), 4096);
    EXPECT_EQ(transfer.operation, "put");
    EXPECT_EQ(transfer.start, buffer.data() + 1000);
    EXPECT_TRUE(gateway->can_reach(transfer.token)) << "and it stays good";
    EXPECT_EQ(client.cuMemObjPutDescriptor(buffer.data()), CU_OBJ_SUCCESS);
    EXPECT_FALSE(gateway->can_reach(transfer.token));
    EXPECT_EQ(client.cuObjGet(&transfer, buffer.data(), 1), -EINVAL);
}

TEST_F(ClientTest, ArgumentsThatCannotBeMeantAreErrors) {
    cuObjClient client(ops);
    char* const start = buffer.data();
    ASSERT_EQ(client.cuMemObjGetDescriptor(start, buffer.size()), CU_OBJ_SUCCESS);
    Transfer transfer;
    EXPECT_EQ(client.cuObjGet(nullptr, start, 1), -EINVAL);
    EXPECT_EQ(client.cuObjGet(&transfer, nullptr, 1), -EINVAL);
    EXPECT_EQ(client.cuObjGet(&transfer, start, 0), -EINVAL);
    EXPECT_EQ(client.cuObjGet(&transfer, start, 1, -1), -EINVAL);
    EXPECT_EQ(client.cuObjPut(&transfer, start, 1, 0, -1), -EINVAL);
    EXPECT_EQ(client.cuObjPut(&transfer, start, 1, 0, INT64_MAX), -EINVAL);
    EXPECT_EQ(client.cuObjPut(&transfer, start, SIZE_MAX), -EINVAL);
    EXPECT_EQ(transfer.operation, "");
    EXPECT_EQ(client.cuMemObjGetDescriptor(nullptr, 1), CU_OBJ_FAIL);
    EXPECT_EQ(client.cuMemObjGetDescriptor(start, 0), CU_OBJ_FAIL);
    EXPECT_EQ(client.cuMemObjGetDescriptor(start, CUOBJ_MAX_MEMORY_REG_SIZE + 1), CU_OBJ_FAIL);
    EXPECT_EQ(client.cuMemObjPutDescriptor(nullptr), CU_OBJ_SUCCESS);
    EXPECT_EQ(client.cuMemObjPutDescriptor(start + 1), CU_OBJ_SUCCESS);
    EXPECT_LT(client.cuMemObjGetMaxRequestCallbackSize(start + buffer.size()), 0);
    EXPECT_EQ(client.cuMemObjGetMaxRequestCallbackSize(start), static_cast<ssize_t>(CUOBJ_MAX_MEMORY_REG_SIZE));
}

TEST_F(ClientTest, ClientsWithoutCallbacksGiveTokens) {
    auto none = std::make_unique<CUObjOps_t>();
    cuObjClient client(*none, CUOBJ_PROTO_RDMA_DC_V1);
    none.reset();
    char* const start = buffer.data();
    ASSERT_EQ(client.cuMemObjGetDescriptor(start, buffer.size()), CU_OBJ_SUCCESS);
    EXPECT_EQ(client.cuObjGet(this, start, 1), -EINVAL);
    char* token = nullptr;
    ASSERT_EQ(client.cuMemObjGetRDMAToken(start, 100, 50, CUOBJ_GET, &token), CU_OBJ_SUCCESS);
    const std::string kept = token;
    EXPECT_EQ(client.cuMemObjPutRDMAToken(token), CU_OBJ_SUCCESS);
    EXPECT_TRUE(gateway->can_reach(kept));
    char expected[17];
    std::snprintf(expected, sizeof expected, "%016zx", reinterpret_cast<size_t>(start + 50));
    EXPECT_EQ(kept.substr(0, 26), std::string(expected) + ":00000064:");
    EXPECT_EQ(client.cuMemObjPutRDMAToken(nullptr), CU_OBJ_SUCCESS);
    EXPECT_EQ(client.cuMemObjGetRDMAToken(start, 1, 0, CUOBJ_INVALID, &token), CU_OBJ_FAIL);
    EXPECT_EQ(token, nullptr);
    EXPECT_EQ(client.cuMemObjGetRDMAToken(start, 1, 0, CUOBJ_PUT, nullptr), CU_OBJ_FAIL);
    EXPECT_EQ(client.cuMemObjGetRDMAToken(start, 1, SIZE_MAX, CUOBJ_PUT, &token), CU_OBJ_FAIL);
    EXPECT_EQ(client.cuMemObjGetRDMAToken(nullptr, 1, 0, CUOBJ_PUT, &token), CU_OBJ_FAIL);
    EXPECT_EQ(client.cuMemObjGetRDMAToken(start, buffer.size(), 1, CUOBJ_PUT, &token), CU_OBJ_FAIL);
}

TEST_F(ClientTest, WhatTheCallbackSaysIsTheResult) {
    cuObjClient client(ops);
    ASSERT_EQ(client.cuMemObjGetDescriptor(buffer.data(), buffer.size()), CU_OBJ_SUCCESS);
    Transfer transfer;
    transfer.result = -ETIMEDOUT;
    EXPECT_EQ(client.cuObjGet(&transfer, buffer.data(), 10), -ETIMEDOUT);
    transfer.result = 10;
    EXPECT_EQ(client.cuObjGet(&transfer, buffer.data(), 10), 10);
    EXPECT_EQ(client.cuObjPut(&transfer, buffer.data(), 10), 10);
    const auto counters = process_engine()->snapshot();
    EXPECT_EQ(counters.callback_failures, 1U);
    EXPECT_EQ(counters.gets, 1U);
    EXPECT_EQ(counters.get_bytes, 10U);
    EXPECT_EQ(counters.puts, 1U);
    EXPECT_EQ(counters.tokens, 3U);
}

TEST_F(ClientTest, AnExceptionOfTheCallbackDoesNotLeave) {
    CUObjOps_t throwing{[](const void*, char*, size_t, loff_t, const cufileRDMAInfo_t*) -> ssize_t { throw 1; },
                        [](const void*, const char*, size_t, loff_t, const cufileRDMAInfo_t*) -> ssize_t {
                            throw std::runtime_error("a callback's trouble");
                        }};
    cuObjClient client(throwing);
    ASSERT_EQ(client.cuMemObjGetDescriptor(buffer.data(), buffer.size()), CU_OBJ_SUCCESS);
    EXPECT_EQ(client.cuObjGet(this, buffer.data(), 10), -EIO);
    EXPECT_EQ(client.cuObjPut(this, buffer.data(), 10), -EIO);
    EXPECT_EQ(log.count("a callback's trouble"), 1U);
}

TEST_F(ClientTest, TheDestructorTakesBackWhatWasLeft) {
    {
        cuObjClient client(ops);
        cuObjClient other(ops);
        ASSERT_EQ(client.cuMemObjGetDescriptor(buffer.data(), 100), CU_OBJ_SUCCESS);
        {
            cuObjClient gone(ops);
            ASSERT_EQ(gone.cuMemObjGetDescriptor(buffer.data() + 1000, 100), CU_OBJ_SUCCESS);
            EXPECT_EQ(gateway->regions(), 2U);
        }
        EXPECT_EQ(gateway->regions(), 1U);
        EXPECT_EQ(gateway->sessions(), 1U) << "all clients of a process share one";
        Transfer transfer;
        EXPECT_EQ(other.cuObjGet(&transfer, buffer.data(), 10), 0) << "and what each registered";
    }
    EXPECT_EQ(process_engine(), nullptr);
    EXPECT_TRUE(eventually([&] { return gateway->sessions() == 0; }));
}

TEST_F(ClientTest, ARestartOfTheGatewayCostsATransfer) {
    cuObjClient client(ops);
    ASSERT_EQ(client.cuMemObjGetDescriptor(buffer.data(), buffer.size()), CU_OBJ_SUCCESS);
    Transfer transfer;
    transfer.result = 1;
    const std::string path = gateway->path();
    gateway.reset();
    EXPECT_EQ(client.cuObjGet(&transfer, buffer.data(), 10), -EIO);
    EXPECT_EQ(transfer.operation, "") << "no request goes out without a token";
    gateway = std::make_unique<FakeGateway>(path);
    EXPECT_EQ(client.cuObjGet(&transfer, buffer.data(), 10), 1);
    EXPECT_TRUE(gateway->can_reach(transfer.token));
    EXPECT_EQ(client.cuMemObjPutDescriptor(buffer.data()), CU_OBJ_SUCCESS);
    EXPECT_EQ(gateway->regions(), 0U);
}

TEST_F(ClientTest, WithoutAGatewayItIsNotConnectedAndSaysWhy) {
    const Variable nowhere("S3VERBS_SOCKET", directory.path() + "/other.sock");
    cuObjClient client(ops);
    EXPECT_FALSE(client.isConnected());
    EXPECT_EQ(client.cuMemObjGetDescriptor(buffer.data(), 10), CU_OBJ_FAIL);
    EXPECT_EQ(log.count("no transport: samehost: " + directory.path() + "/other.sock: No such file"), 1U);
    const FakeGateway late(directory.path() + "/other.sock");
    EXPECT_TRUE(client.isConnected()) << "it looks again";
}

TEST_F(ClientTest, ASettingThatCannotBeUsedIsNeverIgnored) {
    const Variable wrong("S3VERBS_TRANSPORT", "fastest");
    cuObjClient client(ops);
    EXPECT_FALSE(client.isConnected());
    EXPECT_EQ(client.cuMemObjGetDescriptor(buffer.data(), 10), CU_OBJ_FAIL);
    EXPECT_EQ(gateway->sessions(), 0U);
    EXPECT_GE(log.count("S3VERBS_TRANSPORT is \"fastest\"; it can be auto, dc, rc or samehost"), 1U);
}

TEST_F(ClientTest, MemoryTypes) {
    EXPECT_EQ(cuObjClient::getMemoryType(buffer.data()), CUOBJ_MEMORY_SYSTEM);
    EXPECT_EQ(cuObjClient::getMemoryType(nullptr), CUOBJ_MEMORY_INVALID);
    EXPECT_EQ(cuObjClient::getCtx(&ops), &ops);
    EXPECT_EQ(cuObjClient::getCtx(nullptr), nullptr);
}

TEST_F(ClientTest, TelemetryIsTheLogAsTheFlagsChoose) {
    std::ostringstream stream;
    cuObjClient::setupTelemetry(true, &stream);
    cuObjClient::setTelemFlags(CUOBJ_LOG_PATH_ERROR);
    s3verbs::log(LogLevel::info, "an information");
    s3verbs::log(LogLevel::error, "an error");
    EXPECT_EQ(stream.str(), "s3verbs: error: an error\n");
    cuObjClient::setTelemFlags(CUOBJ_LOG_PATH_INFO | CUOBJ_LOG_PATH_DEBUG);
    s3verbs::log(LogLevel::debug, "a detail");
    EXPECT_NE(stream.str().find("a detail"), std::string::npos);
    cuObjClient::shutdownTelemetry();
    s3verbs::log(LogLevel::debug, "a later detail");
    EXPECT_EQ(stream.str().find("a later detail"), std::string::npos);
}

}  // namespace
}  // namespace s3verbs
