#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <sstream>
#include <thread>

#include "backends.h"
#include "fake_cuda.h"
#include "gpu/cuda_driver.h"
#include "log.h"

namespace s3verbs {
namespace {

constexpr std::uint64_t device_memory = 0x7f1000000000;
constexpr std::uint64_t managed_memory = 0x7f2000000000;
constexpr std::uint64_t pinned_memory = 0x7f3000000000;
constexpr std::size_t allocation_size = 1 << 20;

void* pointer(std::uint64_t address) {
    return reinterpret_cast<void*>(address);
}

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != text.npos;
}

// Before anything loads a driver: this suite is the first of the program.
TEST(WithoutDriver, AllMemoryIsTheHosts) {
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr) {
        GTEST_SKIP() << "the driver's stand-in is loaded already: the tests are not in their order";
    }
    EXPECT_EQ(CudaDriver::find(), nullptr);
    EXPECT_EQ(memory_type_of(pointer(device_memory)), MemoryType::system);
    const Memory memory = describe_memory(pointer(device_memory), 100);
    EXPECT_EQ(memory.address, pointer(device_memory));
    EXPECT_EQ(memory.size, 100u);
    EXPECT_EQ(memory.type, MemoryType::system);
    EXPECT_EQ(memory.gpu, -1);
    EXPECT_FALSE(memory.dmabuf);
}

void* load(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        throw std::runtime_error(dlerror());
    }
    return library;
}

FakeCuda& fake_of(void* library) {
    return *reinterpret_cast<FakeCuda* (*)()>(dlsym(library, "fake_cuda"))();
}

class GpuMemoryTest : public testing::Test {
protected:
    GpuMemoryTest() : cuda(fake_of(load(FAKE_CUDA))) {
        cuda.allocations = {{device_memory, allocation_size, 2, false, 1},
                            {managed_memory, allocation_size, 2, true, 0},
                            {pinned_memory, allocation_size, 1, false, 0}};
        cuda.failing.clear();
        cuda.pointers_need_context = false;
        cuda.active.clear();
        cuda.synchronized.clear();
        cuda.exported.clear();
        set_log(LogLevel::error, "");
        set_log_stream(&logged);
    }

    ~GpuMemoryTest() override {
        set_log_stream(nullptr);
        EXPECT_EQ(cuda.pushed, 0) << "a context was left current";
    }

    static std::string reason(const std::function<void()>& action) {
        try {
            action();
        } catch (const TransportError& error) {
            return error.what();
        }
        return "nothing was thrown";
    }

    FakeCuda& cuda;
    std::ostringstream logged;
};

TEST_F(GpuMemoryTest, TypesAreTheDrivers) {
    int host = 0;
    EXPECT_EQ(memory_type_of(&host), MemoryType::system);
    EXPECT_EQ(memory_type_of(nullptr), MemoryType::system);
    EXPECT_EQ(memory_type_of(pointer(device_memory + 5)), MemoryType::device);
    EXPECT_EQ(memory_type_of(pointer(managed_memory)), MemoryType::managed);
    EXPECT_EQ(memory_type_of(pointer(pinned_memory)), MemoryType::system);
    EXPECT_EQ(memory_type_of(pointer(device_memory + allocation_size)), MemoryType::system);
    cuda.allocations.push_back({0x7f4000000000, 4096, 4, false, 0});
    EXPECT_EQ(memory_type_of(pointer(0x7f4000000000)), MemoryType::device) << "unified, and not managed";
}

TEST_F(GpuMemoryTest, HostMemoryNeedsNothingOfTheDriver) {
    const Memory memory = describe_memory(pointer(pinned_memory), 4096);
    EXPECT_EQ(memory.gpu, -1);
    EXPECT_FALSE(memory.dmabuf);
    EXPECT_TRUE(cuda.synchronized.empty());
}

TEST_F(GpuMemoryTest, ADevicesMemoryHasADmaBufOfWholePages) {
    const std::uint64_t address = device_memory + 0x1234;
    const Memory memory = describe_memory(pointer(address), 0x2000);
    EXPECT_EQ(memory.type, MemoryType::device);
    EXPECT_EQ(memory.gpu, 1);
    EXPECT_EQ(cuda.synchronized, std::vector<std::uint64_t>{address});
    ASSERT_TRUE(memory.dmabuf);
    EXPECT_TRUE(cuda.exported.empty()) << "it is opened when it is wanted";
    for (int i = 0; i < 2; ++i) {
        const DmaBuf dmabuf = memory.dmabuf();
        EXPECT_EQ(dmabuf.offset, 0x234u);
        EXPECT_GE(fcntl(dmabuf.descriptor, F_GETFD), 0);
        close(dmabuf.descriptor);
    }
    ASSERT_EQ(cuda.exported.size(), 2u);
    EXPECT_EQ(cuda.exported[0].first, device_memory + 0x1000);
    EXPECT_EQ(cuda.exported[0].size, 0x3000u);
    EXPECT_EQ(cuda.exported[0].device, 1) << "in the context of its own device";
    EXPECT_EQ(cuda.retained[1], 1) << "a primary context is retained once";
}

TEST_F(GpuMemoryTest, ManagedMemoryHasNoDmaBuf) {
    const Memory memory = describe_memory(pointer(managed_memory), 4096);
    EXPECT_EQ(memory.type, MemoryType::managed);
    EXPECT_EQ(memory.gpu, 0);
    EXPECT_FALSE(memory.dmabuf);
}

TEST_F(GpuMemoryTest, ARefusedDmaBufIsATransportErrorWithTheDriversReason) {
    const Memory memory = describe_memory(pointer(device_memory), 4096);
    cuda.failing = {{"cuMemGetHandleForAddressRange", 801}};
    EXPECT_EQ(reason([&] { memory.dmabuf(); }), "cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED");
    cuda.failing = {{"cuMemGetHandleForAddressRange", 12345}};
    EXPECT_EQ(reason([&] { memory.dmabuf(); }), "cuMemGetHandleForAddressRange: error 12345");
    cuda.failing = {{"cuCtxPushCurrent_v2", 201}};
    EXPECT_EQ(reason([&] { memory.dmabuf(); }), "cuCtxPushCurrent_v2: CUDA_ERROR_INVALID_CONTEXT");
}

TEST_F(GpuMemoryTest, MemoryBeyondItsAllocationIsSaidToBe) {
    const Memory memory = describe_memory(pointer(device_memory + 4096), allocation_size);
    cuda.failing = {{"cuMemGetHandleForAddressRange", 1}};
    EXPECT_EQ(reason([&] { memory.dmabuf(); }),
              "cuMemGetHandleForAddressRange: CUDA_ERROR_INVALID_VALUE: the memory goes beyond its allocation, 1048576 "
              "bytes");
}

TEST_F(GpuMemoryTest, MemoryThatCannotBeSynchronizedIsUsedAndSaid) {
    cuda.failing = {{"cuPointerSetAttribute", 801}};
    const Memory memory = describe_memory(pointer(device_memory), 4096);
    EXPECT_TRUE(memory.dmabuf);
    EXPECT_TRUE(has(logged.str(), "cuPointerSetAttribute: CUDA_ERROR_NOT_SUPPORTED")) << logged.str();
}

TEST_F(GpuMemoryTest, BeforeTheApplicationsCuInitNoAddressIsAGpus) {
    for (const int code : {3, 4}) {
        cuda.failing = {{"cuPointerGetAttributes", code}};
        EXPECT_EQ(memory_type_of(pointer(device_memory)), MemoryType::system);
        EXPECT_EQ(describe_memory(pointer(device_memory), 1).type, MemoryType::system);
    }
}

TEST_F(GpuMemoryTest, AThreadWithoutAContextBorrowsOneThatTheApplicationHas) {
    cuda.pointers_need_context = true;
    EXPECT_EQ(memory_type_of(pointer(device_memory)), MemoryType::system) << "no device has a context yet";
    const auto before = cuda.retained;
    cuda.active[1] = true;
    std::thread([] { EXPECT_EQ(memory_type_of(pointer(device_memory)), MemoryType::device); }).join();
    EXPECT_EQ(cuda.retained[0], before.count(0) != 0 ? before.at(0) : 0) << "no context is made of the other device";
}

TEST_F(GpuMemoryTest, AnyOtherErrorIsNoCrash) {
    cuda.failing = {{"cuPointerGetAttributes", 801}};
    EXPECT_EQ(memory_type_of(pointer(device_memory)), MemoryType::system);
    EXPECT_EQ(reason([] { describe_memory(pointer(device_memory), 1); }),
              "what memory this is cannot be told: cuPointerGetAttributes: CUDA_ERROR_NOT_SUPPORTED");
}

TEST(OldDriver, SaysWhatItDoesNotHave) {
    CudaDriver driver(load(FAKE_CUDA_OLD));
    try {
        driver.open_dmabuf(0, 0, 4096);
        FAIL() << "nothing was thrown";
    } catch (const CudaError& error) {
        EXPECT_STREQ(error.what(), "cuMemGetHandleForAddressRange: this driver is too old to have it");
    }
    EXPECT_FALSE(driver.describe(device_memory).known);
}

}  // namespace
}  // namespace s3verbs
