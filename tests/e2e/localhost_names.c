/* Preloaded into a client, this makes every name under ".localhost" the loopback address, as RFC 6761 section 6.3 asks of
 * a resolver. The C library of Debian does so only with a systemd module; virtual-hosted buckets need such names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>

typedef int (*resolver)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result)
{
    static const char suffix[] = ".localhost";
    const size_t length = node ? strlen(node) : 0;

    if (length >= sizeof suffix && strcmp(node + length - (sizeof suffix - 1), suffix) == 0)
        node = "127.0.0.1";
    return ((resolver)dlsym(RTLD_NEXT, "getaddrinfo"))(node, service, hints, result);
}
