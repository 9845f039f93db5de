// Where a gateway's same-host socket is, and whom to believe there. Source: docs/samehost-protocol.md, "The socket".
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "config.h"
#include "descriptor.h"

namespace s3verbs::samehost {

// A place where gateways put their sockets, for one user (`is_private`) or for all of the machine.
struct Directory {
    std::string path;
    bool is_private;
};

struct Candidate {
    std::string path;
    // Another user's gateway is believed here if that user alone can write the directory.
    bool may_be_anothers;
};

// In the order in which they count.
std::vector<Directory> directories(const Environment& environment, uid_t user);

// Paths that end in .sock, sorted. What cannot be read is empty.
std::vector<Candidate> sockets_in(const Directory& directory);

// Whether a client believes a server of user `server` (from SO_PEERCRED) there.
bool is_trusted(const Candidate& candidate, uid_t server);

// A SOCK_SEQPACKET connection, close-on-exec, or none with errno set. Waits at most `seconds`.
Descriptor connect_to(const std::string& path, unsigned seconds);

// The one live gateway's socket in those places. Throws TransportError when there is none, or more than one: the
// library does not know which endpoint requests go to.
Candidate only_live_socket(const std::vector<Directory>& places);

}  // namespace s3verbs::samehost
