#include "verbs/dc_targets.h"

#include <cerrno>

#include "bench.h"

namespace s3verbs {
namespace {

class DcTargetsTest : public Bench {
protected:
    DcTargetsTest() : Bench("mlx5_0", "mlx5_core", "mlx5_1", "mlx5_core") {}

    static Config with(TransportChoice choice) {
        Config config;
        config.transport = choice;
        return config;
    }
};

class MixedDevicesTest : public Bench {
protected:
    MixedDevicesTest() : Bench("mlx5_0", "mlx5_core", "rxe0", "rxe") {}
};

TEST_F(DcTargetsTest, AreMadeAsTheDriverDemands) {
    const Rail rail(machine(), place("mlx5_0"));
    verbs.mtu = IBV_MTU_1024;
    const DcTarget target(api, rail, 0x1122334455667788);
    EXPECT_EQ(verbs.dct_key, 0x1122334455667788u);
    const std::vector<Step> steps = verbs.steps(0);
    ASSERT_EQ(steps.size(), 2u);
    EXPECT_EQ(steps[0].mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    EXPECT_EQ(steps[0].attributes.qp_state, IBV_QPS_INIT);
    EXPECT_EQ(steps[0].attributes.pkey_index, 0);
    EXPECT_EQ(steps[0].attributes.port_num, 1);
    EXPECT_EQ(steps[0].attributes.qp_access_flags, unsigned{IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE});
    EXPECT_EQ(steps[1].mask, IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_MIN_RNR_TIMER | IBV_QP_AV);
    EXPECT_EQ(steps[1].attributes.qp_state, IBV_QPS_RTR);
    EXPECT_EQ(steps[1].attributes.path_mtu, IBV_MTU_1024);
    EXPECT_EQ(steps[1].attributes.min_rnr_timer, 12);
    EXPECT_EQ(steps[1].attributes.ah_attr.is_global, 1);
    EXPECT_EQ(steps[1].attributes.ah_attr.port_num, 1);
    EXPECT_EQ(steps[1].attributes.ah_attr.grh.sgid_index, 3);
    EXPECT_EQ(steps[1].attributes.ah_attr.grh.hop_limit, 64);
    EXPECT_EQ(steps[1].attributes.ah_attr.grh.traffic_class, 0);
    EXPECT_NE(target.number(), 0u) << "the number comes with the last step";
}

TEST_F(DcTargetsTest, ATokenHasTheTargetsNumberAndNoSuffix) {
    const auto transport = open(with(TransportChoice::dc));
    EXPECT_EQ(transport->kind(), TransportKind::dc);
    const auto registration = transport->register_memory(memory());
    EXPECT_EQ(registration->token(0, 4096),
              "00007f0000001000:00001000:00001001:0000:000011:1:00000000000000000000ffff0a000101");
    EXPECT_EQ(registration->token(1, 1),
              "00007f0000001001:00000001:00001002:0000:000012:1:00000000000000000000ffff0a000102");
}

TEST_F(DcTargetsTest, AreTakenWithoutBeingAskedForWhereTheyCanBeMade) {
    EXPECT_EQ(open({})->kind(), TransportKind::dc);
    EXPECT_EQ(open(with(TransportChoice::rc))->kind(), TransportKind::rc);
    verbs.fail({{"mlx5_create_qp:mlx5_0", EOPNOTSUPP}});
    EXPECT_EQ(open({})->describe(), "mlx5_1:1:3 (10.0.1.2 on eth2)");
    EXPECT_TRUE(has(logged.str(), "mlx5dv_create_qp: Operation not supported"));
    verbs.fail({{"mlx5_create_qp", EOPNOTSUPP}});
    const auto reliable = open({});
    EXPECT_EQ(reliable->kind(), TransportKind::rc);
    EXPECT_EQ(reliable->describe(), "mlx5_0:1:3 (10.0.1.1 on eth1), mlx5_1:1:3 (10.0.1.2 on eth2)");
    EXPECT_TRUE(has(logged.str(), "reliable connections are used"));
}

TEST_F(DcTargetsTest, EveryFailureIsSaidAndLeavesNothing) {
    const std::pair<const char*, const char*> calls[] = {{"create_srq", "ibv_create_srq"},
                                                         {"mlx5_create_qp", "mlx5dv_create_qp"},
                                                         {"modify_qp", "ibv_modify_qp"},
                                                         {"query_port", "ibv_query_port"}};
    for (const auto& [call, name] : calls) {
        verbs.fail({{call, EINVAL}});
        const std::string text = reason([&] { open(with(TransportChoice::dc)); });
        EXPECT_TRUE(has(text, std::string("mlx5_0:1:3 (10.0.1.1 on eth1): ") +
                                  (std::string(call) == "query_port" ? "" : "no DC target: ") + name +
                                  ": Invalid argument"))
            << text;
        EXPECT_TRUE(has(text, "; mlx5_1:1:3")) << text;
        EXPECT_EQ(verbs.alive(), (std::map<std::string, int>{}));
    }
    verbs.fail({});
    api.mlx5_create_qp = nullptr;
    api.no_mlx5 = "libmlx5.so.1: cannot open shared object file";
    EXPECT_TRUE(has(reason([&] { open(with(TransportChoice::dc)); }), "libmlx5.so.1"));
    EXPECT_EQ(open({})->kind(), TransportKind::rc);
}

TEST_F(DcTargetsTest, TheKeyIsTheConfigurationsAndTheDefaultIsWarnedOf) {
    open(with(TransportChoice::dc));
    EXPECT_EQ(verbs.dct_key, 0xffeeddccu);
    EXPECT_TRUE(has(logged.str(), "published default"));
    logged.str("");
    Config config = with(TransportChoice::dc);
    config.dc_key = 0x1234;
    open(config);
    EXPECT_EQ(verbs.dct_key, 0x1234u);
    EXPECT_FALSE(has(logged.str(), "published default"));
}

TEST_F(MixedDevicesTest, OnlyMlx5DevicesHaveThem) {
    EXPECT_EQ(open({})->describe(), "mlx5_0:1:3 (10.0.1.1 on eth1)");
    Config config;
    config.transport = TransportChoice::dc;
    config.devices = {{"rxe0", {}, {}}};
    EXPECT_TRUE(
        has(reason([&] { open(config); }), "only mlx5 devices have dynamic connections, this one's driver is rxe"));
    config.transport = TransportChoice::automatic;
    EXPECT_EQ(open(config)->kind(), TransportKind::rc);
}

}  // namespace
}  // namespace s3verbs
