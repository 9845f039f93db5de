// A file descriptor that is this process's alone: a forked child has it closed.
#pragma once

#include <utility>

namespace s3verbs {

class Descriptor {
public:
    Descriptor() = default;
    // Takes it; negative is none.
    explicit Descriptor(int descriptor);
    ~Descriptor() { close(); }
    Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(descriptor_, other.descriptor_);
        return *this;
    }

    int get() const noexcept { return descriptor_; }
    explicit operator bool() const noexcept { return descriptor_ >= 0; }
    void close() noexcept;
    // Gives it up unclosed, and to children too.
    void release() noexcept;

private:
    int descriptor_ = -1;
};

}  // namespace s3verbs
