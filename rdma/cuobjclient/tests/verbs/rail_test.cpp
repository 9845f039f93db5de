#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "bench.h"

namespace s3verbs {
namespace {

constexpr int all_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;

class RailTest : public Bench {
protected:
    RailTest() : Bench("mlx5_0", "mlx5_core", "mlx5_1", "mlx5_core") {}

    std::unique_ptr<Rail> open_rail() { return std::make_unique<Rail>(machine(), place("mlx5_0")); }

    // Of a GPU; its dma-buf is `descriptor` at this offset.
    static Memory gpu_memory(int descriptor, std::uint64_t offset) {
        Memory memory = Bench::memory();
        memory.type = MemoryType::device;
        memory.gpu = 3;
        memory.dmabuf = [descriptor, offset] { return DmaBuf{descriptor, offset}; };
        return memory;
    }

    static bool is_open(int descriptor) { return fcntl(descriptor, F_GETFD) >= 0; }
};

TEST_F(RailTest, HostMemoryIsRegisteredForReadingAndWriting) {
    const auto rail = open_rail();
    Region region = rail->register_memory(memory(12345), PeerMemory::automatic);
    ASSERT_EQ(verbs.regions.size(), 1u);
    const AskedRegion& asked = verbs.regions[0];
    EXPECT_EQ(asked.device, "mlx5_0");
    EXPECT_EQ(asked.address, 0x7f0000001000u);
    EXPECT_EQ(asked.size, 12345u);
    EXPECT_EQ(asked.access, all_access);
    EXPECT_EQ(asked.descriptor, -1);
    EXPECT_EQ(region.rkey(), 0x1001u);
    EXPECT_EQ(region.deregister(), 0);
}

TEST_F(RailTest, MemoryThatIsMappedForReadingCanBeRead) {
    const auto rail = open_rail();
    verbs.on_register = [](const AskedRegion& asked) {
        return (asked.access & IBV_ACCESS_REMOTE_WRITE) != 0 ? EFAULT : 0;
    };
    Region region = rail->register_memory(memory(), PeerMemory::automatic);
    EXPECT_EQ(verbs.regions.back().access, IBV_ACCESS_REMOTE_READ);
    EXPECT_EQ(region.deregister(), 0);
}

TEST_F(RailTest, ARefusedRegistrationSaysWhatToDo) {
    const auto rail = open_rail();
    const std::pair<int, const char*> hints[] = {
        {ENOMEM, "ibv_reg_mr: Cannot allocate memory: the limit of locked memory (ulimit -l, LimitMEMLOCK=) is "},
        {EAGAIN, "ulimit -l"},
        {EFAULT, "the memory is not mapped"},
        {EPERM, "CAP_IPC_LOCK"},
        {EINVAL, "cannot register 4096 bytes: ibv_reg_mr: Invalid argument"},
    };
    for (const auto& [code, hint] : hints) {
        verbs.on_register = [code = code](const AskedRegion&) { return code; };
        const std::string text = reason([&] { rail->register_memory(memory(), PeerMemory::automatic); });
        EXPECT_TRUE(has(text, hint)) << text;
        EXPECT_TRUE(has(text, "mlx5_0:1:3 (10.0.1.1 on eth1)")) << text;
    }
}

TEST_F(RailTest, AGpusMemoryIsRegisteredAsADmaBufAndTheDescriptorIsClosed) {
    const auto rail = open_rail();
    const int descriptor = memfd_create("dma-buf", 0);
    Region region = rail->register_memory(gpu_memory(descriptor, 0x100), PeerMemory::automatic);
    ASSERT_EQ(verbs.regions.size(), 1u);
    const AskedRegion& asked = verbs.regions[0];
    EXPECT_EQ(asked.descriptor, descriptor);
    EXPECT_EQ(asked.offset, 0x100u);
    EXPECT_EQ(asked.address, 0x7f0000001000u) << "a token names the memory's own address";
    EXPECT_EQ(asked.access, all_access);
    EXPECT_FALSE(is_open(descriptor));
    EXPECT_EQ(region.deregister(), 0);
}

TEST_F(RailTest, WithoutADmaBufPeerMemoryIsTriedAndThenBothReasonsAreGiven) {
    const auto rail = open_rail();
    const int descriptor = memfd_create("dma-buf", 0);
    verbs.on_register = [](const AskedRegion& asked) { return asked.descriptor >= 0 ? EOPNOTSUPP : 0; };
    Region region = rail->register_memory(gpu_memory(descriptor, 0), PeerMemory::dmabuf);
    EXPECT_EQ(verbs.regions.back().descriptor, -1);
    EXPECT_FALSE(is_open(descriptor));
    EXPECT_EQ(region.deregister(), 0);

    verbs.on_register = [](const AskedRegion& asked) { return asked.descriptor >= 0 ? EOPNOTSUPP : EFAULT; };
    const std::string text =
        reason([&] { rail->register_memory(gpu_memory(memfd_create("dma-buf", 0), 0), PeerMemory::automatic); });
    EXPECT_EQ(
        text,
        "mlx5_0:1:3 (10.0.1.1 on eth1): memory of GPU 3: as a dma-buf: ibv_reg_dmabuf_mr: Operation not supported; "
        "by peer memory: ibv_reg_mr: Bad address: is the module nvidia-peermem loaded?");
    for (const AskedRegion& asked : verbs.regions) {
        EXPECT_EQ(asked.access, all_access) << "a GPU's memory is never registered for reading only";
    }
}

TEST_F(RailTest, PeerMemoryCanBeChosen) {
    const auto rail = open_rail();
    Memory memory = gpu_memory(-1, 0);
    memory.dmabuf = []() -> DmaBuf { throw std::logic_error("no dma-buf was wanted"); };
    Region region = rail->register_memory(memory, PeerMemory::peermem);
    EXPECT_EQ(verbs.regions.size(), 1u);
    EXPECT_EQ(region.deregister(), 0);
}

TEST_F(RailTest, ADriverWithoutDmaBufsAndALibraryWithoutThemFallBack) {
    Memory memory = gpu_memory(-1, 0);
    memory.dmabuf = []() -> DmaBuf { throw TransportError("cuMemGetHandleForAddressRange: CUDA_ERROR_NOT_SUPPORTED"); };
    verbs.on_register = [](const AskedRegion&) { return EFAULT; };
    {
        const auto rail = open_rail();
        EXPECT_TRUE(
            has(reason([&] { rail->register_memory(memory, PeerMemory::automatic); }), "CUDA_ERROR_NOT_SUPPORTED"));
        memory.dmabuf = nullptr;
        EXPECT_TRUE(has(reason([&] { rail->register_memory(memory, PeerMemory::automatic); }), "the driver has none"));
    }
    api.reg_dmabuf_mr = nullptr;
    const auto rail = open_rail();
    EXPECT_TRUE(has(reason([&] { rail->register_memory(memory, PeerMemory::automatic); }), "this libibverbs is older"));
}

TEST_F(RailTest, ARailThatFailedRestsForFiveSeconds) {
    const auto rail = open_rail();
    EXPECT_TRUE(rail->is_fit());
    rail->rest();
    EXPECT_FALSE(rail->is_fit());
    now += std::chrono::milliseconds(4999);
    EXPECT_FALSE(rail->is_fit());
    now += std::chrono::milliseconds(1);
    EXPECT_TRUE(rail->is_fit());
}

TEST_F(RailTest, ThePortsStateIsBelievedForASecond) {
    const auto rail = open_rail();
    EXPECT_TRUE(rail->is_fit());
    sysfs.state("mlx5_0", "1: DOWN");
    EXPECT_TRUE(rail->is_fit());
    now += std::chrono::seconds(1);
    EXPECT_FALSE(rail->is_fit());
    sysfs.state("mlx5_0", "4: ACTIVE");
    EXPECT_FALSE(rail->is_fit());
    now += std::chrono::seconds(1);
    EXPECT_TRUE(rail->is_fit());
    EXPECT_TRUE(has(logged.str(), "the port is down"));
    EXPECT_TRUE(has(logged.str(), "the port is up"));
    std::filesystem::remove(sysfs.root() / "class/infiniband/mlx5_0/ports/1/state");
    now += std::chrono::seconds(1);
    EXPECT_FALSE(rail->is_fit());
}

TEST_F(RailTest, WhatTheDeviceReportsIsHeard) {
    const auto rail = open_rail();
    verbs.report("mlx5_0", IBV_EVENT_QP_ACCESS_ERR);
    verbs.report("mlx5_0", IBV_EVENT_PORT_ERR);
    EXPECT_TRUE(rail->is_fit()) << "a server's mistake, and a port whose state is ACTIVE again";
    verbs.report("mlx5_0", IBV_EVENT_QP_FATAL);
    now += std::chrono::seconds(1);
    EXPECT_FALSE(rail->is_fit());
    now += rest_time;
    EXPECT_TRUE(rail->is_fit());
    verbs.report("mlx5_0", IBV_EVENT_DEVICE_FATAL);
    now += std::chrono::seconds(1);
    EXPECT_FALSE(rail->is_fit());
    EXPECT_TRUE(rail->is_removed());
}

TEST_F(RailTest, WhatCannotBeOpenedIsSaidAndLeavesNothing) {
    const std::pair<const char*, const char*> calls[] = {{"get_device_list", "ibv_get_device_list"},
                                                         {"open_device", "ibv_open_device"},
                                                         {"query_device", "ibv_query_device"},
                                                         {"alloc_pd", "ibv_alloc_pd"},
                                                         {"create_cq", "ibv_create_cq"}};
    for (const auto& [call, name] : calls) {
        verbs.fail({{call, EACCES}});
        const std::string text = reason([&] { open_rail(); });
        EXPECT_TRUE(has(text, std::string(name) + ": Permission denied")) << text;
        EXPECT_EQ(verbs.alive(), (std::map<std::string, int>{}));
    }
    verbs.fail({});
    sysfs.netdev("eth3", "10.0.1.3");
    sysfs.device("bnxt_re0", "bnxt_en");
    sysfs.gid("bnxt_re0", 1, kernel_gid("10.0.1.3"), "eth3");
    EXPECT_TRUE(has(reason([&] { Rail(machine(), place("bnxt_re0")); }), "ibverbs-providers"));
}

}  // namespace
}  // namespace s3verbs
