#include "cufile_json.h"

#include <gtest/gtest.h>

#include <random>

namespace s3verbs {
namespace {

// The shape of the file that a vendor publishes for this very stack.
const std::string published = R"({
    // General logging
    "logging": { "level": "INFO" },
    "execution": { "parallel_io": false },
    "properties": {
        "allow_compat_mode": true,
        "use_pci_p2pdma": true,
        "rdma_peer_type": "dmabuf", // or the module
        "rdma_dev_addr_list": [ "10.0.1.2", "fe80::1%mlx5_0", "mlx5_1" ],
        /* "rdma_dc_key": "0x1", */
        "rdma_dc_key": "0xffeeddcd"
    },
    "fs": { "generic": { "posix_unaligned_writes": false } }
})";

Config apply(const std::string& text) {
    Config config;
    apply_cufile_json(text, config);
    return config;
}

TEST(CufileJson, PublishedFileWorksAsItIs) {
    const auto config = apply(published);
    EXPECT_EQ(config.peer_memory, PeerMemory::dmabuf);
    EXPECT_EQ(config.rail_addresses, (std::vector<std::string>{"10.0.1.2", "fe80::1%mlx5_0", "mlx5_1"}));
    EXPECT_EQ(config.dc_key, 0xffeeddcdU);
    EXPECT_EQ(config.log_level, LogLevel::info);
    EXPECT_EQ(config.log_directory, "");
}

TEST(CufileJson, WhatIsNotThereStaysAsItWas) {
    Config config;
    config.dc_key = 7;
    config.log_directory = "/var/log";
    apply_cufile_json(R"({"properties": {"rdma_dc_key": null}, "logging": null})", config);
    EXPECT_EQ(config.dc_key, 7U);
    EXPECT_EQ(config.log_directory, "/var/log");
}

TEST(CufileJson, KnowsEveryLevelOfCufile) {
    const std::pair<const char*, LogLevel> levels[] = {
        {"ERROR", LogLevel::error}, {"FATAL", LogLevel::error}, {"WARN", LogLevel::warning}, {"NOTICE", LogLevel::info},
        {"INFO", LogLevel::info},   {"DEBUG", LogLevel::debug}, {"TRACE", LogLevel::debug}};
    for (const auto& [name, level] : levels) {
        EXPECT_EQ(apply(std::string(R"({"logging": {"level": ")") + name + "\"}}").log_level, level) << name;
    }
}

TEST(CufileJson, KeyCanBeANumber) {
    EXPECT_EQ(apply(R"({"properties": {"rdma_dc_key": 4293844428}})").dc_key, 0xffeeddccU);
}

TEST(CufileJson, NamesTheMemberThatIsWrong) {
    const std::pair<const char*, const char*> wrong[] = {
        {R"({"properties": []})", "properties"},
        {R"({"logging": 1})", "logging"},
        {R"({"logging": {"level": "LOUD"}})", "logging.level"},
        {R"({"logging": {"level": 3}})", "logging.level"},
        {R"({"logging": {"dir": 3}})", "logging.dir"},
        {R"({"properties": {"rdma_peer_type": "gdrcopy"}})", "rdma_peer_type"},
        {R"({"properties": {"rdma_peer_type": true}})", "rdma_peer_type"},
        {R"({"properties": {"rdma_dev_addr_list": "10.0.0.1"}})", "rdma_dev_addr_list"},
        {R"({"properties": {"rdma_dev_addr_list": [1]}})", "rdma_dev_addr_list"},
        {R"({"properties": {"rdma_dev_addr_list": [""]}})", "rdma_dev_addr_list"},
        {R"({"properties": {"rdma_dc_key": -1}})", "rdma_dc_key"},
        {R"({"properties": {"rdma_dc_key": 1.5}})", "rdma_dc_key"},
        {R"({"properties": {"rdma_dc_key": "key"}})", "DC key"},
        {R"([1])", "object"},
        {R"({"properties": )", "parse error"},
        {"", "parse error"},
    };
    for (const auto& [text, part] : wrong) {
        try {
            apply(text);
            ADD_FAILURE() << text;
        } catch (const ConfigError& error) {
            EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
        }
    }
}

// Bytes changed, taken out and doubled at random: it is read or refused, nothing else.
TEST(CufileJson, SurvivesAnyText) {
    std::mt19937 random(7);
    int refused = 0;
    for (int round = 0; round < 3000; ++round) {
        std::string text = published;
        for (unsigned change = random() % 8 + 1; change != 0; --change) {
            const auto at = random() % text.size();
            switch (random() % 3) {
                case 0:
                    text[at] = static_cast<char>(random());
                    break;
                case 1:
                    text.erase(at, random() % 20 + 1);
                    break;
                default:
                    text.insert(at, text.substr(random() % text.size(), random() % 30));
            }
            if (text.empty()) {
                break;
            }
        }
        try {
            apply(text);
        } catch (const ConfigError& error) {
            EXPECT_STRNE(error.what(), "");
            ++refused;
        }
    }
    EXPECT_GT(refused, 100);
    EXPECT_THROW(apply(std::string(100000, '[')), ConfigError);
}

}  // namespace
}  // namespace s3verbs
