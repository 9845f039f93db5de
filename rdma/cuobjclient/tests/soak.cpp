// soak [--seconds N]: registration, transfers and clients that come and go, against a gateway that is restarted all the
// time. Prints what the process holds, and fails when that grows.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuobjclient.h"
#include "fake_gateway.h"
#include "s3verbs.h"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t workers = 4;
constexpr std::size_t buffer_size = 1 << 20;
constexpr auto gateway_life = 700ms;
constexpr auto gateway_pause = 20ms;
// KiB: what malloc's arenas may still settle by after the first third; a sanitizer keeps what was freed.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr long tolerated_growth = 1 << 18;
#else
constexpr long tolerated_growth = 1024;
#endif

struct Holdings {
    long resident = 0;  // KiB
    long descriptors = 0;
    long threads = 0;
};

Holdings holdings() {
    Holdings now;
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
        if (word == "VmRSS:") {
            status >> now.resident;
        } else if (word == "Threads:") {
            status >> now.threads;
        }
    }
    now.descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
    return now;
}

// In a process of its own, so that what it holds is not counted.
[[noreturn]] void keep_gateway(const std::string& path) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) {
        {
            const s3verbs::testing::FakeGateway gateway(path);
            std::this_thread::sleep_for(gateway_life);
        }
        std::this_thread::sleep_for(gateway_pause);
    }
}

struct Totals {
    std::atomic<bool> stop{false};
    std::atomic<long> transfers{0};
    std::atomic<long> failures{0};
    std::atomic<long> clients{0};
    std::atomic<long> unreleased{0};
};

ssize_t on_transfer(const void*, char*, size_t size, loff_t, const cufileRDMAInfo_t*) {
    return static_cast<ssize_t>(size);
}

void register_and_transfer(cuObjClient& client, Totals& totals, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<char> buffer(buffer_size);
    while (!totals.stop) {
        char* const start = buffer.data() + random() % (buffer_size / 2);
        const std::size_t size = random() % (buffer_size / 2) + 1;
        if (client.cuMemObjGetDescriptor(start, size) == CU_OBJ_SUCCESS) {
            for (int count = 0; count < 4; ++count) {
                ++(client.cuObjGet(&totals, start, size) >= 0 ? totals.transfers : totals.failures);
            }
            if (client.cuMemObjPutDescriptor(start) != CU_OBJ_SUCCESS) {
                ++totals.unreleased;
            }
        }
        std::this_thread::sleep_for(500us);
    }
}

void come_and_go(CUObjOps_t& ops, Totals& totals) {
    std::vector<char> buffer(buffer_size);
    while (!totals.stop) {
        cuObjClient client(ops);
        client.cuMemObjGetDescriptor(buffer.data(), buffer.size());
        char token[S3VERBS_TOKEN_SIZE];
        s3verbs_token(buffer.data(), 100, token, sizeof token);
        ++totals.clients;
        std::this_thread::sleep_for(2ms);
    }
}

void report(const char* when, const Holdings& now, const Totals& totals) {
    std::printf(
        "%-8s %7ld KiB resident  %3ld descriptors  %2ld threads  %9ld transfers  %7ld without a token  %7ld clients\n",
        when, now.resident, now.descriptors, now.threads, totals.transfers.load(), totals.failures.load(),
        totals.clients.load());
    std::fflush(stdout);
}

int run(std::chrono::seconds duration) {
    Totals totals;
    CUObjOps_t ops{on_transfer, nullptr};
    Holdings settled;
    Holdings last;
    {
        cuObjClient client(ops);
        std::vector<std::thread> threads;
        for (unsigned seed = 0; seed < workers; ++seed) {
            threads.emplace_back(register_and_transfer, std::ref(client), std::ref(totals), seed);
        }
        threads.emplace_back(come_and_go, std::ref(ops), std::ref(totals));
        constexpr int reports = 15;
        for (int number = 1; number <= reports; ++number) {
            std::this_thread::sleep_for(std::chrono::duration_cast<std::chrono::milliseconds>(duration) / reports);
            last = holdings();
            report((std::to_string(number * duration.count() / reports) + " s").c_str(), last, totals);
            if (number <= reports / 3) {
                // Of what comes and goes by the moment, the most that there was.
                settled.resident = std::max(settled.resident, last.resident);
                settled.descriptors = std::max(settled.descriptors, last.descriptors);
                settled.threads = std::max(settled.threads, last.threads);
            }
        }
        totals.stop = true;
        for (auto& thread : threads) {
            thread.join();
        }
    }
    last.descriptors = holdings().descriptors;
    bool failed = false;
    const auto expect = [&](bool holds, const char* what) {
        if (!holds) {
            std::printf("FAILED: %s\n", what);
            failed = true;
        }
    };
    expect(totals.transfers > 100 * duration.count(), "there were too few transfers for the time to prove anything");
    expect(totals.unreleased == 0, "memory was not released");
    expect(last.resident <= settled.resident + tolerated_growth, "resident memory grew");
    expect(last.descriptors <= settled.descriptors, "descriptors leaked");
    expect(last.threads <= settled.threads, "threads were left behind");
    std::printf("%s: %ld s, %+ld KiB resident, %ld transfers\n", failed ? "FAILED" : "OK", duration.count(),
                last.resident - settled.resident, totals.transfers.load());
    return failed ? 1 : 0;
}

}  // namespace

int main(int count, char** arguments) {
    std::chrono::seconds duration{1800};
    if (count == 3 && std::strcmp(arguments[1], "--seconds") == 0) {
        duration = std::chrono::seconds(std::atol(arguments[2]));
    }
    if ((count != 1 && count != 3) || duration < 1s) {
        std::fprintf(stderr, "usage: %s [--seconds N]\n", arguments[0]);
        return 2;
    }
    char directory[] = "/tmp/cuobjclient-soak-XXXXXX";
    if (mkdtemp(directory) == nullptr) {
        std::perror("mkdtemp");
        return 1;
    }
    const std::string path = std::string(directory) + "/gateway.sock";
    const pid_t gateway = fork();
    if (gateway == 0) {
        keep_gateway(path);
    }
    while (!std::filesystem::exists(path)) {
        std::this_thread::sleep_for(1ms);
    }
    setenv("S3VERBS_SOCKET", path.c_str(), 1);
    // To a file: of the restarts there is much to say.
    const std::string log = std::string(directory) + "/log.json";
    std::ofstream(log) << R"({"logging": {"dir": ")" << directory << "\"}}";
    setenv("CUFILE_ENV_PATH_JSON", log.c_str(), 1);
    const int result = run(duration);
    kill(gateway, SIGKILL);
    waitpid(gateway, nullptr, 0);
    std::filesystem::remove_all(directory);
    return result;
}
