// What the stand-in for libcuda.so.1 answers, and what it was asked. The library exports one as `fake_cuda`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace s3verbs {

// `type` is an enum CUmemorytype: 1 host, 2 device, 4 unified.
struct FakeAllocation {
    std::uint64_t first;
    std::size_t size;
    unsigned type;
    bool managed;
    int device;
};

struct FakeRange {
    int device;
    std::uint64_t first;
    std::size_t size;
};

struct FakeCuda {
    std::mutex mutex;
    std::vector<FakeAllocation> allocations;
    // Calls that fail, by name, with an enum CUresult.
    std::map<std::string, int> failing;
    // cuPointerGetAttributes wants a current context, as some drivers do.
    bool pointers_need_context = false;
    // Devices whose primary context the application has made.
    std::map<int, bool> active;
    int devices = 2;

    std::map<int, int> retained;
    std::vector<std::uint64_t> synchronized;
    std::vector<FakeRange> exported;
    // Contexts that threads have pushed and not popped.
    int pushed = 0;
};

}  // namespace s3verbs
