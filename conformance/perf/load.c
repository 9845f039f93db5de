/* A closed-loop HTTP/1.1 load client: C connections, each with one request in flight, until a time is over
 * or TOTAL requests were begun (0: no such limit).
 *
 *   load HOST PORT CONNECTIONS SECONDS BODY_BYTES TOTAL [RECEIVE_BYTES] < REQUESTS
 *
 * REQUESTS is a sequence of records "<decimal length>\n<request head, that many bytes>"; they are sent in turn, over and
 * over. BODY_BYTES of arbitrary data follow every head (0 for GET, HEAD and LIST). Heads are signed beforehand, so the
 * client spends nothing on signing. Response bodies are dropped, 256 KiB at a time; with RECEIVE_BYTES each connection
 * has a buffer of that size and receives every body into its place there, as a client does that wants the object.
 * Prints one JSON object: requests, errors (status not 2xx), payload bytes both ways, seconds, latency quantiles in
 * microseconds, the client's own CPU seconds, and the CRC32 of the last body in each buffer.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_LIMIT = 65536, READ_CHUNK = 1 << 18 };

struct request {
    char *head;
    size_t length;
    int bodyless; /* a HEAD: its response has no body whatever Content-Length says */
};

struct connection {
    int fd;
    const struct request *request;
    size_t sent;        /* bytes of head and body already sent */
    char head[HEAD_LIMIT];
    size_t head_length; /* response bytes gathered until the blank line */
    int head_done;
    int chunked;
    int closing;
    long long left;     /* response body bytes still to come */
    char tail[8];       /* last bytes of a chunked body */
    size_t tail_length;
    int status;
    double started;
    char *buffer;       /* receive_bytes, or NULL: bodies are dropped */
    size_t received;    /* bytes of this response in it */
};

static struct request *requests;
static size_t request_count, next_request, total_requests;
static char *body, *sink;
static size_t body_bytes, receive_bytes;
static double *latencies;
static size_t latency_count, latency_room;
static long long done, errors, bytes_in;
static int last_bad_status;
static struct sockaddr_in address;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void die(const char *what) {
    perror(what);
    exit(2);
}

static void read_requests(void) {
    size_t room = 0;
    unsigned long length;
    while (scanf("%lu", &length) == 1) {
        if (getchar() != '\n') {
            fprintf(stderr, "load: malformed request record\n");
            exit(2);
        }
        if (request_count == room) {
            room = room ? room * 2 : 1024;
            requests = realloc(requests, room * sizeof *requests);
            if (!requests) die("realloc");
        }
        struct request *r = &requests[request_count++];
        r->head = malloc(length);
        r->length = length;
        if (!r->head || fread(r->head, 1, length, stdin) != length) die("request record");
        r->bodyless = length > 5 && memcmp(r->head, "HEAD ", 5) == 0;
    }
    if (!request_count) {
        fprintf(stderr, "load: no requests\n");
        exit(2);
    }
}

static void dial(struct connection *c, int epoll) {
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0) die("socket");
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event)) die("epoll_ctl");
}

static void begin(struct connection *c) {
    c->request = &requests[next_request++ % request_count];
    c->sent = c->head_length = 0;
    c->head_done = c->chunked = c->closing = 0;
    c->tail_length = c->received = 0;
    c->started = now();
}

static void pump_out(struct connection *c) {
    size_t total = c->request->length + body_bytes;
    while (c->sent < total) {
        const char *from;
        size_t length;
        int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
        if (c->sent < c->request->length) {
            from = c->request->head + c->sent;
            length = c->request->length - c->sent;
            if (body_bytes) flags |= MSG_MORE;
        } else {
            from = body + (c->sent - c->request->length);
            length = total - c->sent;
        }
        ssize_t n = send(c->fd, from, length, flags);
        if (n < 0) {
            if (errno != EAGAIN) c->closing = 2;
            return;
        }
        c->sent += (size_t)n;
    }
}

static void parse_head(struct connection *c) {
    c->left = 0;
    c->status = atoi(c->head + 9);
    for (char *line = strstr(c->head, "\r\n"); line && line[2] != '\r'; line = strstr(line + 2, "\r\n")) {
        char *name = line + 2;
        if (!strncasecmp(name, "content-length:", 15)) c->left = atoll(name + 15);
        else if (!strncasecmp(name, "transfer-encoding: chunked", 26)) c->chunked = 1;
        else if (!strncasecmp(name, "connection: close", 17)) c->closing = 1;
    }
    if (c->request->bodyless || c->status == 204 || c->status == 304) c->left = 0, c->chunked = 0;
}

static void record(double microseconds) {
    if (latency_count == latency_room) {
        latency_room = latency_room ? latency_room * 2 : 1 << 16;
        latencies = realloc(latencies, latency_room * sizeof *latencies);
        if (!latencies) die("realloc");
    }
    latencies[latency_count++] = microseconds;
}

/* 1: the response is complete, 0: more to come, -1: the connection is gone */
static int pump_in(struct connection *c) {
    for (;;) {
        if (c->head_done && !c->chunked && c->left == 0) return 1;
        char *into = c->head_done ? sink : c->head + c->head_length;
        size_t room = c->head_done ? READ_CHUNK : HEAD_LIMIT - 1 - c->head_length;
        if (c->head_done && c->buffer) {
            into = c->buffer + c->received;
            room = receive_bytes - c->received;
        }
        if (!room) return -1;
        ssize_t n = recv(c->fd, into, room, MSG_DONTWAIT);
        if (n == 0) return -1;
        if (n < 0) return errno == EAGAIN ? 0 : -1;
        const char *data = into;
        size_t length = (size_t)n;
        if (!c->head_done) {
            c->head_length += length;
            c->head[c->head_length] = 0;
            char *end = strstr(c->head, "\r\n\r\n");
            if (!end) continue;
            if (!strncmp(c->head + 9, "100", 3)) { /* interim response: drop it */
                size_t used = (size_t)(end + 4 - c->head);
                memmove(c->head, c->head + used, c->head_length - used + 1);
                c->head_length -= used;
                end = strstr(c->head, "\r\n\r\n");
                if (!end) continue;
            }
            c->head_done = 1;
            parse_head(c);
            data = end + 4;
            length = c->head_length - (size_t)(data - c->head);
            if (c->buffer) {
                if (length > receive_bytes) return -1;
                memcpy(c->buffer, data, length);
            }
        }
        c->received += length;
        bytes_in += (long long)length;
        if (c->chunked) {
            size_t keep = length < 5 ? length : 5;
            if (length >= 5) c->tail_length = 0;
            if (c->tail_length + keep > sizeof c->tail) {
                memmove(c->tail, c->tail + c->tail_length + keep - 5, 5 - keep);
                c->tail_length = 5 - keep;
            }
            memcpy(c->tail + c->tail_length, data + length - keep, keep);
            c->tail_length += keep;
            if (c->tail_length >= 5 && !memcmp(c->tail + c->tail_length - 5, "0\r\n\r\n", 5)) return 1;
        } else {
            c->left -= (long long)length;
        }
    }
}

static unsigned crc32(const char *data, size_t length) {
    unsigned table[256], crc = ~0u;
    for (unsigned i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xEDB88320u : 0);
    }
    for (size_t i = 0; i < length; i++) crc = crc >> 8 ^ table[(crc ^ (unsigned char)data[i]) & 0xFF];
    return ~crc;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double q) {
    return latency_count ? latencies[(size_t)((double)(latency_count - 1) * q)] : 0;
}

int main(int argc, char **argv) {
    if (argc != 7 && argc != 8) {
        fprintf(stderr, "usage: load HOST PORT CONNECTIONS SECONDS BODY_BYTES TOTAL [RECEIVE_BYTES] < REQUESTS\n");
        return 2;
    }
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)atoi(argv[2]));
    if (inet_pton(AF_INET, argv[1], &address.sin_addr) != 1) die("host");
    int count = atoi(argv[3]);
    double seconds = atof(argv[4]);
    body_bytes = (size_t)atoll(argv[5]);
    total_requests = (size_t)atoll(argv[6]);
    receive_bytes = argc == 8 ? (size_t)atoll(argv[7]) : 0;
    read_requests();
    body = malloc(body_bytes + 1);
    sink = malloc(READ_CHUNK);
    struct connection *connections = calloc((size_t)count, sizeof *connections);
    if (!body || !sink || !connections) die("malloc");
    for (size_t i = 0, x = 88172645463325252ull; i + 8 <= body_bytes; i += 8) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(body + i, &x, 8);
    }
    for (int i = 0; i < count && receive_bytes; i++) {
        connections[i].buffer = malloc(receive_bytes);
        if (!connections[i].buffer) die("malloc");
        memset(connections[i].buffer, 1, receive_bytes); /* its pages are there before the clock starts */
    }
    int epoll = epoll_create1(0);
    for (int i = 0; i < count; i++) dial(&connections[i], epoll);
    double cpu_before = cpu_seconds();
    double start = now(), end = start + seconds;
    for (int i = 0; i < count; i++) {
        begin(&connections[i]);
        pump_out(&connections[i]);
    }
    int active = count;
    while (active) {
        struct epoll_event events[64];
        int n = epoll_wait(epoll, events, 64, 30000);
        if (n == 0) {
            fprintf(stderr, "load: no progress for 30 s\n");
            errors += active;
            break;
        }
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c->request) continue;
            pump_out(c);
            int result = pump_in(c);
            if (result == 0) continue;
            double t = now();
            if (result > 0) {
                done++;
                record((t - c->started) * 1e6);
            }
            if (result < 0 || c->status < 200 || c->status > 299) {
                errors++;
                last_bad_status = result < 0 ? -1 : c->status;
            }
            if (result < 0 || c->closing) {
                close(c->fd);
                dial(c, epoll);
            }
            if (t >= end || (total_requests && next_request >= total_requests) || (errors > 100 && errors > done / 2)) {
                c->request = NULL;
                active--;
                continue;
            }
            begin(c);
            pump_out(c);
        }
    }
    double elapsed = now() - start;
    double cpu = cpu_seconds() - cpu_before;
    qsort(latencies, latency_count, sizeof *latencies, ascending);
    printf("{\"requests\": %lld, \"errors\": %lld, \"last_bad_status\": %d, \"bytes_in\": %lld, \"bytes_out\": %lld, \"seconds\": %.6f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, \"client_cpu\": %.3f, \"crc32\": [",
           done, errors, last_bad_status, bytes_in, done * (long long)body_bytes, elapsed, quantile(0.5), quantile(0.99), quantile(1.0), cpu);
    for (int i = 0; i < count && receive_bytes; i++)
        printf("%s%u", i ? ", " : "", crc32(connections[i].buffer, connections[i].received));
    printf("]}\n");
    return 0;
}
