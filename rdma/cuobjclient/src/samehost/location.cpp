#include "samehost/location.h"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "transport.h"

namespace s3verbs::samehost {

namespace {

constexpr std::string_view suffix = ".sock";
// A probe is answered by the kernel, unless the gateway's queue of connections is full.
constexpr unsigned probe_seconds = 1;

std::string directory_of(const std::string& path) {
    const auto slash = path.rfind('/');
    if (slash == path.npos) {
        return ".";
    }
    return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

std::vector<Directory> directories(const Environment& environment, uid_t user) {
    std::vector<Directory> found;
    if (const char* runtime = environment("XDG_RUNTIME_DIR"); runtime != nullptr && runtime[0] == '/') {
        found.push_back({std::string(runtime) + "/s3verbs", true});
    }
    found.push_back({"/run/s3verbs", false});
    found.push_back({"/tmp/s3verbs-" + std::to_string(user), true});
    return found;
}

std::vector<Candidate> sockets_in(const Directory& directory) {
    std::vector<Candidate> found;
    const std::unique_ptr<DIR, int (*)(DIR*)> listing(opendir(directory.path.c_str()), closedir);
    if (!listing) {
        return found;
    }
    while (const dirent* entry = readdir(listing.get())) {
        const std::string_view name = entry->d_name;
        if (name.front() != '.' && name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix) {
            found.push_back({directory.path + "/" + std::string(name), !directory.is_private});
        }
    }
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
    return found;
}

bool is_trusted(const Candidate& candidate, uid_t server) {
    if (server == 0 || server == geteuid()) {
        return true;
    }
    if (!candidate.may_be_anothers) {
        return false;
    }
    struct stat status {};
    return lstat(directory_of(candidate.path).c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
           status.st_uid == server && (status.st_mode & 022) == 0;
}

Descriptor connect_to(const std::string& path, unsigned seconds) {
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    if (path.size() >= sizeof where.sun_path) {
        errno = ENAMETOOLONG;
        return {};
    }
    std::memcpy(where.sun_path, path.data(), path.size());
    Descriptor descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (!descriptor) {
        return {};
    }
    // A connection to a full queue waits as long as a send may.
    const timeval patience{static_cast<time_t>(seconds), 0};
    setsockopt(descriptor.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(descriptor.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where) != 0) {
        const int error = errno;
        descriptor.close();
        errno = error;
        return {};
    }
    return descriptor;
}

Candidate only_live_socket(const std::vector<Directory>& places) {
    std::vector<Candidate> live;
    std::string searched;
    std::string names;
    for (const auto& place : places) {
        searched += (searched.empty() ? "" : ", ") + place.path;
        for (auto& candidate : sockets_in(place)) {
            if (connect_to(candidate.path, probe_seconds)) {
                names += (names.empty() ? "" : ", ") + candidate.path;
                live.push_back(std::move(candidate));
            }
        }
    }
    if (live.empty()) {
        throw TransportError("no gateway listens for clients of this machine in " + searched);
    }
    if (live.size() > 1) {
        throw TransportError(
            "several gateways listen on this machine: name the socket of the endpoint's one in "
            "S3VERBS_SOCKET: " +
            names);
    }
    return std::move(live.front());
}

}  // namespace s3verbs::samehost
