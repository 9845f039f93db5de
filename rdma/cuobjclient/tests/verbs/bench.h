// A machine of stand-ins, and what the tests of the transports share.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>

#include "fake_sysfs.h"
#include "fake_verbs.h"
#include "log.h"
#include "verbs/rail.h"
#include "verbs/verbs_transport.h"

namespace s3verbs {

// Two active devices: `first` at 10.0.1.1 and `second` at 10.0.1.2. At the end nothing may be left of the verbs
// objects.
class Bench : public testing::Test {
protected:
    Bench(const std::string& first, const std::string& first_driver, const std::string& second,
          const std::string& second_driver)
        : verbs({{first, gid_of_text("10.0.1.1")}, {second, gid_of_text("10.0.1.2")}}), api(verbs.api()) {
        add(first, first_driver, "eth1", "10.0.1.1");
        add(second, second_driver, "eth2", "10.0.1.2");
        set_log(LogLevel::error, "");
        set_log_stream_levels(0xf);
        set_log_stream(&logged);
    }

    ~Bench() override {
        set_log_stream(nullptr);
        set_log_stream_levels(0xf);
    }

    void TearDown() override {
        EXPECT_EQ(verbs.alive(), (std::map<std::string, int>{}));
        EXPECT_EQ(verbs.mistakes(), std::vector<std::string>{});
    }

    Machine machine() {
        return {api, sysfs.root(), [this] { return now; }};
    }

    Place place(const std::string& device) {
        for (const Place& each : choose_rails(read_inventory(sysfs.root(), sysfs.addresses()), {}, {}).places) {
            if (each.device == device) {
                return each;
            }
        }
        throw std::runtime_error("no " + device);
    }

    std::unique_ptr<Transport> open(const Config& config) { return open_verbs(machine(), sysfs.addresses(), config); }

    static Memory memory(std::size_t size = 4096) {
        Memory host;
        host.address = reinterpret_cast<void*>(0x7f0000001000);
        host.size = size;
        return host;
    }

    static std::string reason(const std::function<void()>& action) {
        try {
            action();
        } catch (const TransportError& error) {
            return error.what();
        }
        return "nothing was thrown";
    }

    static bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

    FakeSysfs sysfs;
    FakeVerbs verbs;
    VerbsApi api;
    // Begins late enough for "a second ago" to be a time.
    Clock::time_point now = Clock::time_point{} + std::chrono::hours(1);
    std::ostringstream logged;

private:
    void add(const std::string& device, const std::string& driver, const std::string& netdev,
             const std::string& address) {
        sysfs.netdev(netdev, address);
        sysfs.device(device, driver);
        sysfs.gid(device, 3, kernel_gid(address), netdev);
    }
};

}  // namespace s3verbs
