#include "config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "support.h"

namespace s3verbs {
namespace {

using Settings = std::map<std::string, std::string>;

Config read(const Settings& settings) {
    return read_config([&](const char* name) {
        const auto found = settings.find(name);
        return found == settings.end() ? nullptr : found->second.c_str();
    });
}

std::string complaint(const Settings& settings) {
    try {
        read(settings);
    } catch (const ConfigError& error) {
        return error.what();
    }
    return "";
}

TEST(Config, OfAnEmptyEnvironmentIsTheDefault) {
    const auto config = read({});
    EXPECT_EQ(config.transport, TransportChoice::automatic);
    EXPECT_EQ(config.socket, "");
    EXPECT_TRUE(config.devices.empty());
    EXPECT_TRUE(config.rail_addresses.empty());
    EXPECT_EQ(config.peer_memory, PeerMemory::automatic);
    EXPECT_EQ(config.dc_key, 0xffeeddccU);
    EXPECT_EQ(config.log_level, LogLevel::info);
}

TEST(Config, TakesEveryVariable) {
    const auto config = read({{"S3VERBS_TRANSPORT", "rc"},
                              {"S3VERBS_SOCKET", " /run/gateway.sock "},
                              {"S3VERBS_RDMA_DEVICES", "mlx5_0, mlx5_1:2 ,rxe0:1:3,"},
                              {"S3VERBS_DC_KEY", "0x123456789abcdef0"},
                              {"S3VERBS_LOG", "Debug"},
                              {"CUFILE_DMABUF_ENABLE", "TRUE"}});
    EXPECT_EQ(config.transport, TransportChoice::rc);
    EXPECT_EQ(config.socket, "/run/gateway.sock");
    ASSERT_EQ(config.devices.size(), 3U);
    EXPECT_EQ(config.devices[0].device, "mlx5_0");
    EXPECT_FALSE(config.devices[0].port);
    EXPECT_EQ(config.devices[1].port, 2U);
    EXPECT_FALSE(config.devices[1].gid_index);
    EXPECT_EQ(config.devices[2].device, "rxe0");
    EXPECT_EQ(config.devices[2].gid_index, 3U);
    EXPECT_EQ(config.dc_key, 0x123456789abcdef0U);
    EXPECT_EQ(config.log_level, LogLevel::debug);
    EXPECT_EQ(config.peer_memory, PeerMemory::dmabuf);
}

TEST(Config, SaysWhatATransportCanBe) {
    EXPECT_EQ(complaint({{"S3VERBS_TRANSPORT", "tcp"}}),
              "S3VERBS_TRANSPORT is \"tcp\"; it can be auto, dc, rc or samehost");
    for (const auto* good : {"auto", "dc", "rc", "samehost"}) {
        EXPECT_EQ(complaint({{"S3VERBS_TRANSPORT", good}}), "");
    }
}

TEST(Config, RefusesWhatCannotBeMeant) {
    EXPECT_NE(complaint({{"S3VERBS_LOG", "loud"}}), "");
    EXPECT_NE(complaint({{"CUFILE_DMABUF_ENABLE", "perhaps"}}), "");
    for (const auto* bad : {"", " ", "0x", "-1", "1.5", "12 34", "0x1ffffffffffffffff", "key"}) {
        EXPECT_THROW(parse_dc_key(bad), ConfigError) << bad;
    }
    for (const auto* bad : {"", ":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:256", "mlx5_0:x", "mlx5_0:1:", "mlx5_0:1:-1",
                            "mlx5_0:1:2:3", "mlx5 0", "../etc", "a/b", "mlx5_0:1:65536"}) {
        EXPECT_THROW(parse_device(bad), ConfigError) << bad;
    }
}

TEST(Config, KeyIsDecimalOrHexadecimal) {
    EXPECT_EQ(parse_dc_key("0xffeeddcc"), 0xffeeddccU);
    EXPECT_EQ(parse_dc_key("0XFF"), 255U);
    EXPECT_EQ(parse_dc_key("255"), 255U);
}

TEST(Config, EnvironmentWinsOverTheFile) {
    const testing::TemporaryDirectory directory;
    const std::string path = directory.path() + "/cufile.json";
    std::ofstream(path) << R"({"logging": {"level": "ERROR"},
                              "properties": {"rdma_dc_key": "0x1", "rdma_peer_type": "dmabuf"}})";
    const auto config = read({{"CUFILE_ENV_PATH_JSON", path}, {"S3VERBS_LOG", "warning"}, {"S3VERBS_DC_KEY", "2"}});
    EXPECT_EQ(config.log_level, LogLevel::warning);
    EXPECT_EQ(config.dc_key, 2U);
    EXPECT_EQ(config.peer_memory, PeerMemory::dmabuf);
    EXPECT_EQ(read({{"CUFILE_ENV_PATH_JSON", path}}).log_level, LogLevel::error);
    EXPECT_EQ(read({{"CUFILE_ENV_PATH_JSON", path}, {"CUFILE_DMABUF_ENABLE", "false"}}).peer_memory,
              PeerMemory::peermem);
}

TEST(Config, NamesAFileThatCannotBeRead) {
    const testing::TemporaryDirectory directory;
    const auto missing = complaint({{"CUFILE_ENV_PATH_JSON", "/no/such/cufile.json"}});
    EXPECT_NE(missing.find("/no/such/cufile.json cannot be read: No such file"), missing.npos) << missing;
    EXPECT_NE(complaint({{"CUFILE_ENV_PATH_JSON", directory.path()}}), "");

    const std::string path = directory.path() + "/huge.json";
    std::ofstream(path) << std::string((1 << 20) + 1, ' ');
    EXPECT_NE(complaint({{"CUFILE_ENV_PATH_JSON", path}}).find("larger"), std::string::npos);
    std::ofstream(path) << "{";
    EXPECT_NE(complaint({{"CUFILE_ENV_PATH_JSON", path}}).find(path), std::string::npos);
}

}  // namespace
}  // namespace s3verbs
