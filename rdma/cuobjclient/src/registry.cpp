#include "registry.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <set>
#include <string>

#include "log.h"

namespace s3verbs {

namespace {

// For many registrations together, of which each can take a transport's patience.
constexpr std::chrono::seconds patience_for_all{5};
// How often somebody who registers memory is made to look after what is in quarantine.
constexpr std::chrono::seconds between_retries{15};

// For ever: a destructor would wait once more, and would let go of memory that a server may touch.
void keep(std::shared_ptr<Registration> registration) {
    static std::mutex& mutex = *new std::mutex;
    static auto& kept = *new std::vector<std::shared_ptr<Registration>>;
    const std::lock_guard lock(mutex);
    kept.push_back(std::move(registration));
}

}  // namespace

Registry::~Registry() {
    for (auto& [address, entry] : entries_) {
        quarantine_.push_back({address, std::move(entry.regions)});
    }
    const auto deadline = Clock::now() + patience_for_all;
    std::size_t left = 0;
    for (auto& memory : quarantine_) {
        if (Clock::now() < deadline && revoke(memory.regions)) {
            continue;
        }
        for (auto& region : memory.regions) {
            keep(std::move(region.registration));
            ++left;
        }
    }
    if (left != 0) {
        log(LogLevel::error,
            std::to_string(left) + " registrations could not be taken back: a server may still touch their memory");
    }
}

// The entry of that address, or the end, when no other thread is at work for it.
Registry::Entries::iterator Registry::settled(std::unique_lock<std::mutex>& lock, std::uintptr_t address) {
    while (true) {
        const auto entry = entries_.find(address);
        if (entry == entries_.end() || !entry->second.busy) {
            return entry;
        }
        changed_.wait(lock);
    }
}

void Registry::add(const void* owner, std::uintptr_t address, std::size_t size, const Make& make) {
    std::unique_lock lock(mutex_);
    if (!quarantine_.empty() && Clock::now() >= next_retry_) {
        next_retry_ = Clock::now() + between_retries;
        retry(lock, quarantine_.front().address);
    }
    auto entry = settled(lock, address);
    if (entry == entries_.end()) {
        entry = entries_.try_emplace(address).first;
    }
    auto& regions = entry->second.regions;
    if (regions.empty() || regions.back().size < size) {
        entry->second.busy = true;
        lock.unlock();
        std::shared_ptr<Registration> made;
        std::exception_ptr problem;
        try {
            made = make();
        } catch (...) {
            problem = std::current_exception();
        }
        lock.lock();
        // Iterators of a map stay good, and nobody else removes an entry that is busy.
        entry->second.busy = false;
        changed_.notify_all();
        if (problem) {
            if (regions.empty()) {
                entries_.erase(entry);
            }
            std::rethrow_exception(problem);
        }
        regions.push_back({size, std::move(made)});
        largest_ = std::max(largest_, size);
    }
    ++entry->second.holders[owner];
}

Registry::Release Registry::release(const void* owner, std::uintptr_t address) {
    std::unique_lock lock(mutex_);
    const auto entry = settled(lock, address);
    if (entry == entries_.end()) {
        return retry(lock, address);
    }
    auto& holders = entry->second.holders;
    auto holder = holders.find(owner);
    if (holder == holders.end()) {
        holder = holders.begin();
    }
    if (--holder->second == 0) {
        holders.erase(holder);
    }
    return holders.empty() ? close(lock, entry) : Release::kept;
}

void Registry::release_all(const void* owner) {
    std::unique_lock lock(mutex_);
    std::set<std::uintptr_t> addresses;
    for (const auto& [address, entry] : entries_) {
        if (entry.holders.count(owner) != 0) {
            addresses.insert(address);
        }
    }
    const auto deadline = Clock::now() + patience_for_all;
    for (const auto address : addresses) {
        const auto entry = settled(lock, address);
        if (entry != entries_.end() && entry->second.holders.erase(owner) != 0 && entry->second.holders.empty()) {
            close(lock, entry, Clock::now() < deadline);
        }
    }
}

// Takes the memory back, without the lock. The entry is gone afterwards.
Registry::Release Registry::close(std::unique_lock<std::mutex>& lock, Entries::iterator entry, bool try_now) {
    entry->second.busy = entry->second.closing = true;
    auto& regions = entry->second.regions;
    lock.unlock();
    const bool sure = try_now && revoke(regions);
    lock.lock();
    if (!sure) {
        quarantine_.push_back({entry->first, std::move(regions)});
    }
    entries_.erase(entry);
    changed_.notify_all();
    return sure ? Release::released : Release::unsure;
}

// Tries again for memory of that address which is in quarantine.
Registry::Release Registry::retry(std::unique_lock<std::mutex>& lock, std::uintptr_t address) {
    const auto is_there = [&](const Quarantined& memory) { return memory.address == address; };
    const auto first = std::stable_partition(quarantine_.begin(), quarantine_.end(), std::not_fn(is_there));
    std::vector<Quarantined> again(std::make_move_iterator(first), std::make_move_iterator(quarantine_.end()));
    quarantine_.erase(first, quarantine_.end());
    if (again.empty()) {
        return Release::unknown;
    }
    lock.unlock();
    bool sure = true;
    for (auto& memory : again) {
        sure = revoke(memory.regions) && sure;
    }
    lock.lock();
    for (auto& memory : again) {
        if (!memory.regions.empty()) {
            quarantine_.push_back(std::move(memory));
        }
    }
    return sure ? Release::released : Release::unsure;
}

// What could not be revoked is left.
bool Registry::revoke(std::vector<Region>& regions) noexcept {
    regions.erase(std::remove_if(regions.begin(), regions.end(),
                                 [](const Region& region) { return region.registration->revoke(); }),
                  regions.end());
    return regions.empty();
}

std::optional<Registry::Found> Registry::find(std::uintptr_t address, std::size_t size) const {
    const std::lock_guard lock(mutex_);
    for (auto entry = entries_.upper_bound(address); entry != entries_.begin();) {
        --entry;
        const std::size_t offset = address - entry->first;
        if (offset >= largest_) {
            break;
        }
        const auto& regions = entry->second.regions;
        if (entry->second.closing || regions.empty()) {
            continue;
        }
        const auto& region = regions.back();
        if (offset < region.size && size <= region.size - offset) {
            return Found{region.registration, offset};
        }
    }
    return std::nullopt;
}

Registry::Gauges Registry::gauges() const {
    const std::lock_guard lock(mutex_);
    Gauges now{0, 0, 0};
    for (const auto& [address, entry] : entries_) {
        if (entry.closing) {
            continue;
        }
        for (const auto& region : entry.regions) {
            ++now.regions;
            now.bytes += region.size;
        }
    }
    for (const auto& memory : quarantine_) {
        now.quarantined += memory.regions.size();
    }
    return now;
}

}  // namespace s3verbs
