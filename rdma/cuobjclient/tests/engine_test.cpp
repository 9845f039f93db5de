#include "engine.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <vector>

#include "fake_transport.h"
#include "mapped_memory.h"
#include "support.h"

namespace s3verbs {
namespace {

using testing::FakeState;
using testing::FakeTransport;

class EngineTest : public ::testing::Test {
protected:
    Backends backends() {
        return {[this](const Config&) -> std::shared_ptr<Transport> {
                    ++verbs_opened;
                    if (!has_verbs) {
                        throw TransportError("no device");
                    }
                    return std::make_shared<FakeTransport>(TransportKind::rc, state);
                },
                [this](const Config&) -> std::shared_ptr<Transport> {
                    ++samehost_opened;
                    if (!has_samehost) {
                        throw TransportError("no gateway");
                    }
                    return std::make_shared<FakeTransport>(TransportKind::samehost, state);
                },
                [this](void* address, std::size_t size) {
                    Memory memory;
                    memory.address = address;
                    memory.size = size;
                    memory.type = type;
                    return memory;
                }};
    }
    Engine make(TransportChoice choice = TransportChoice::automatic, const std::string& socket = "") {
        Config config;
        config.transport = choice;
        config.socket = socket;
        return {config, backends()};
    }
    // The error number of a failed addition, 0 for none.
    int add(Engine& engine, void* address, std::size_t size) {
        try {
            engine.add(this, address, size);
        } catch (const EngineError& error) {
            why = error.what();
            return error.number;
        }
        return 0;
    }

    const testing::CapturedLog log;
    std::shared_ptr<FakeState> state = std::make_shared<FakeState>();
    bool has_verbs = true;
    bool has_samehost = true;
    int verbs_opened = 0;
    int samehost_opened = 0;
    MemoryType type = MemoryType::system;
    std::vector<char> buffer = std::vector<char>(65536);
    std::string why;
};

// -- which transport --

struct Choice {
    TransportChoice wanted;
    bool has_socket, has_verbs, has_samehost;
    MemoryType type;
    const char* goes_by;  // "": by none
};

class SelectionTest : public EngineTest, public ::testing::WithParamInterface<Choice> {};

TEST_P(SelectionTest, TakesTheTransportThatTheOperatorMeant) {
    const auto& choice = GetParam();
    has_verbs = choice.has_verbs;
    has_samehost = choice.has_samehost;
    type = choice.type;
    Config config;
    config.transport = choice.wanted;
    config.socket = choice.has_socket ? "/run/gateway.sock" : "";
    Selection selection(config, backends());
    std::string got;
    try {
        got = name(selection.for_memory(type)->kind());
    } catch (const TransportError& error) {
        EXPECT_STRNE(error.what(), "");
    }
    EXPECT_EQ(got, choice.goes_by);
    if (type == MemoryType::system && *choice.goes_by != '\0') {
        EXPECT_EQ(selection.obstacle(), "");
    }
}

constexpr auto host = MemoryType::system;
constexpr auto gpu = MemoryType::device;
INSTANTIATE_TEST_SUITE_P(Table, SelectionTest,
                         ::testing::Values(Choice{TransportChoice::automatic, true, true, true, host, "samehost"},
                                           Choice{TransportChoice::automatic, true, true, true, gpu, "rc"},
                                           Choice{TransportChoice::automatic, true, true, false, host, ""},
                                           Choice{TransportChoice::automatic, false, true, true, host, "rc"},
                                           Choice{TransportChoice::automatic, false, false, true, host, "samehost"},
                                           Choice{TransportChoice::automatic, false, false, true, gpu, ""},
                                           Choice{TransportChoice::automatic, false, false, false, host, ""},
                                           Choice{TransportChoice::samehost, false, true, true, host, "samehost"},
                                           Choice{TransportChoice::samehost, true, true, true, gpu, ""},
                                           Choice{TransportChoice::rc, true, true, true, host, "rc"},
                                           Choice{TransportChoice::rc, true, false, true, host, ""},
                                           Choice{TransportChoice::dc, false, true, true, gpu, "rc"}));

TEST_F(EngineTest, IsConnectedForAGpuAloneWhenTheSocketsGatewayIsNotThere) {
    has_samehost = false;
    auto engine = make(TransportChoice::automatic, "/run/gateway.sock");
    EXPECT_EQ(engine.obstacle(), "");
    EXPECT_EQ(add(engine, buffer.data(), 10), EIO);
    has_verbs = false;
    auto other = make(TransportChoice::automatic, "/run/gateway.sock");
    EXPECT_EQ(other.obstacle(), "samehost: no gateway; verbs: no device");
}

TEST_F(EngineTest, LooksAgainForATransportUntilThereIsOne) {
    has_verbs = has_samehost = false;
    auto engine = make();
    EXPECT_EQ(engine.obstacle(), "verbs: no device; samehost: no gateway");
    has_samehost = true;
    EXPECT_EQ(engine.obstacle(), "");
    has_verbs = true;
    EXPECT_EQ(add(engine, buffer.data(), 10), 0);
    EXPECT_EQ(log.count("goes by samehost, fake0"), 1U) << "one that works is kept";
    EXPECT_EQ(samehost_opened, 2);
}

// -- what can be registered --

TEST_F(EngineTest, RefusesArgumentsThatCannotBeMeant) {
    auto engine = make();
    EXPECT_EQ(add(engine, nullptr, 10), EINVAL);
    EXPECT_EQ(add(engine, buffer.data(), 0), EINVAL);
    EXPECT_EQ(add(engine, buffer.data(), Engine::max_registration + 1), EINVAL);
    EXPECT_NE(why.find("4 GiB - 64 KiB"), why.npos);
    EXPECT_EQ(add(engine, reinterpret_cast<void*>(UINTPTR_MAX - 5), 10), EINVAL);
    EXPECT_EQ(engine.snapshot().registration_failures, 4U);
    EXPECT_EQ(state->made, 0);
}

TEST_F(EngineTest, RefusesMemoryThatIsNotMapped) {
    auto engine = make();
    EXPECT_EQ(add(engine, reinterpret_cast<void*>(0x1000), 4096), EINVAL);
    EXPECT_NE(why.find("not all mapped"), why.npos);
    EXPECT_EQ(add(engine, reinterpret_cast<void*>(UINTPTR_MAX / 2), 4096), EINVAL);
    EXPECT_EQ(state->made, 0);
}

TEST(MappedMemory, EveryPageCounts) {
    constexpr std::size_t page = 4096;
    char* const pages =
        static_cast<char*>(mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(pages, MAP_FAILED);
    // Nothing allocates between here and the end of the hole: an allocator would fill it.
    munmap(pages + page, page);
    const bool before = is_mapped(pages, page);
    const bool after = is_mapped(pages + 2 * page + 17, 2 * page - 17);
    const bool end = is_mapped(pages + 100, page);
    const bool hole = is_mapped(pages + page, 1);
    const bool around = is_mapped(pages + 200, 3 * page);
    mmap(pages + page, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    EXPECT_TRUE(before);
    EXPECT_TRUE(after);
    EXPECT_FALSE(end);
    EXPECT_FALSE(hole);
    EXPECT_FALSE(around);
    EXPECT_TRUE(is_mapped(pages, 4 * page));
    munmap(pages, 4 * page);
}

TEST_F(EngineTest, RegistersTheLargestThatCanBe) {
    auto engine = make();
    void* memory = mmap(nullptr, Engine::max_registration, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    EXPECT_EQ(add(engine, memory, Engine::max_registration), 0);
    EXPECT_NE(engine.token(memory, Engine::max_registration), "");
    engine.release(this, memory);
    munmap(memory, Engine::max_registration);
}

TEST_F(EngineTest, RefusesManagedMemoryAndLooksAtNoGpusPages) {
    auto engine = make();
    type = MemoryType::managed;
    EXPECT_EQ(add(engine, buffer.data(), 10), EIO);
    EXPECT_NE(why.find("managed"), why.npos);
    type = MemoryType::device;
    EXPECT_EQ(add(engine, reinterpret_cast<void*>(0x10000), 4096), 0);
    EXPECT_EQ(log.count("GPU memory goes by rc, fake0"), 1U);
}

// -- tokens, errors, counters --

TEST_F(EngineTest, GivesTokensForWhatIsRegistered) {
    auto engine = make();
    EXPECT_EQ(add(engine, buffer.data(), buffer.size()), 0);
    const std::string start = std::to_string(reinterpret_cast<std::uintptr_t>(buffer.data()));
    EXPECT_EQ(engine.token(buffer.data() + 100, 200), start + "+100:200");
    EXPECT_TRUE(engine.is_registered(buffer.data() + 5));
    for (const auto& [offset, size] : {std::pair<std::size_t, std::size_t>{0, 0}, {0, 65537}, {65536, 1}}) {
        try {
            engine.token(buffer.data() + offset, size);
            ADD_FAILURE() << offset << " " << size;
        } catch (const EngineError& error) {
            EXPECT_EQ(error.number, EINVAL);
        }
    }
    EXPECT_TRUE(engine.release(this, buffer.data()));
    EXPECT_FALSE(engine.is_registered(buffer.data()));
    EXPECT_THROW(engine.token(buffer.data(), 1), EngineError);
    const auto counters = engine.snapshot();
    EXPECT_EQ(counters.tokens, 1U);
    EXPECT_EQ(counters.token_failures, 4U);
    EXPECT_EQ(counters.registrations, 1U);
    EXPECT_EQ(counters.regions, 0U);
}

TEST_F(EngineTest, TellsWhatItHas) {
    auto engine = make();
    EXPECT_EQ(add(engine, buffer.data(), 1000), 0);
    EXPECT_EQ(add(engine, buffer.data() + 1000, 1000), 0);
    EXPECT_EQ(engine.snapshot().regions, 2U);
    EXPECT_EQ(engine.snapshot().region_bytes, 2000U);
    state->sure = false;
    EXPECT_FALSE(engine.release(this, buffer.data()));
    EXPECT_EQ(engine.snapshot().quarantined, 1U);
    EXPECT_EQ(engine.snapshot().release_failures, 1U);
    state->sure = true;
    EXPECT_TRUE(engine.release(this, buffer.data()));
    engine.release_all(this);
    EXPECT_EQ(engine.snapshot().regions, 0U);
}

TEST_F(EngineTest, SaysOnceWhatABufferGotAndSparselyWhatFails) {
    state->on_register = [] {};
    auto engine = make(TransportChoice::rc);
    for (int index = 0; index < 100; ++index) {
        EXPECT_EQ(add(engine, buffer.data() + index, 1), 0);
    }
    // The text of another test may have been the same; then it was said there.
    EXPECT_LE(log.count("host memory goes by rc, fake0"), 1U);
    state->on_register = [] { throw TransportError("the limit of locked memory is too small"); };
    for (int index = 100; index < 200; ++index) {
        EXPECT_EQ(add(engine, buffer.data() + index, 1), EIO);
    }
    EXPECT_EQ(log.count("the limit of locked memory is too small"), 1U);
}

TEST_F(EngineTest, AnExceptionOfATransportIsAnError) {
    state->on_register = [] { throw std::bad_alloc(); };
    auto engine = make();
    EXPECT_EQ(add(engine, buffer.data(), 10), EIO);
}

TEST_F(EngineTest, OneWithABrokenConfigurationSaysSo) {
    Engine engine("S3VERBS_TRANSPORT is \"tcp\"");
    EXPECT_EQ(engine.obstacle(), "S3VERBS_TRANSPORT is \"tcp\"");
    EXPECT_EQ(add(engine, buffer.data(), 10), EIO);
    EXPECT_NE(why.find("tcp"), why.npos);
    EXPECT_THROW(engine.token(buffer.data(), 1), EngineError);
    EXPECT_TRUE(engine.release(this, buffer.data()));
}

}  // namespace
}  // namespace s3verbs
