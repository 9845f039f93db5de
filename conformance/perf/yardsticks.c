/* What the machine gives without a server: a file in the page cache, moved piece by piece into another process's buffer.
 *
 *   yardsticks writev FILE SIZE SECONDS      process_vm_writev from the mapped file into the memory of a child
 *   yardsticks sendfile FILE SIZE SECONDS    sendfile over loopback TCP to a child that receives into one buffer
 *
 * Each move is of SIZE bytes, the next piece of the file each time, over and over; it begins when the last byte of the
 * one before is in the buffer. Prints one JSON object: moves,
 * bytes, seconds, latency quantiles in microseconds, and the CPU seconds of both sides.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_MOVES = 1 << 20 };

static double latencies[MOST_MOVES];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu_of(int who) {
    struct rusage usage;
    getrusage(who, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void die(const char *what) {
    perror(what);
    exit(2);
}

static void exactly(int fd, void *into, size_t length, int writing) {
    for (size_t done = 0; done < length;) {
        ssize_t n = writing ? write(fd, (char *)into + done, length - done) : read(fd, (char *)into + done, length - done);
        if (n <= 0) die("pipe");
        done += (size_t)n;
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The child of `sendfile`: a byte back for every file that is in the buffer. */
static void receive(int port, char *buffer, size_t size) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    for (;;) {
        for (size_t got = 0; got < size;) {
            ssize_t n = recv(fd, buffer + got, size - got, 0);
            if (n <= 0) exit(0);
            got += (size_t)n;
        }
        exactly(fd, "k", 1, 1);
    }
}

static void writev_piece(pid_t child, char *from, char *into, size_t size) {
    for (size_t done = 0; done < size;) {
        struct iovec local = {from + done, size - done}, remote = {into + done, size - done};
        ssize_t n = process_vm_writev(child, &local, 1, &remote, 1, 0);
        if (n <= 0) die("process_vm_writev");
        done += (size_t)n;
    }
}

static void sendfile_piece(int to, int from, off_t offset, size_t size) {
    off_t end = offset + (off_t)size;
    while (offset < end)
        if (sendfile(to, from, &offset, (size_t)(end - offset)) <= 0) die("sendfile");
    char answer;
    exactly(to, &answer, 1, 0);
}

int main(int argc, char **argv) {
    struct stat status;
    if (argc != 5 || (strcmp(argv[1], "writev") && strcmp(argv[1], "sendfile"))) {
        fprintf(stderr, "usage: yardsticks writev|sendfile FILE SIZE SECONDS\n");
        return 2;
    }
    int by_socket = argv[1][0] == 's', file = open(argv[2], O_RDONLY);
    if (file < 0 || fstat(file, &status)) die(argv[2]);
    size_t size = (size_t)atoll(argv[3]), whole = (size_t)status.st_size;
    if (!size || whole % size) {
        fprintf(stderr, "yardsticks: SIZE does not divide the file's size\n");
        return 2;
    }
    char *from = mmap(NULL, whole, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    char *into = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (from == MAP_FAILED || into == MAP_FAILED) die("mmap");

    int listener = socket(AF_INET, SOCK_STREAM, 0), ready[2];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1)) die("listen");
    if (getsockname(listener, (struct sockaddr *)&address, &length) || pipe(ready)) die("pipe");
    pid_t child = fork();
    if (child < 0) die("fork");
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        memset(into, 1, size); /* its pages are there before the clock starts */
        exactly(ready[1], "r", 1, 1);
        if (by_socket) receive(ntohs(address.sin_port), into, size);
        for (;;) pause();
    }
    char byte;
    exactly(ready[0], &byte, 1, 0);
    int connection = by_socket ? accept(listener, NULL, NULL) : -1;
    double cpu = cpu_of(RUSAGE_SELF), start = now(), end = start + atof(argv[4]), last = start;
    size_t moves = 0;
    while (last < end && moves < MOST_MOVES) {
        size_t at = moves % (whole / size) * size;
        if (by_socket) sendfile_piece(connection, file, (off_t)at, size);
        else writev_piece(child, from + at, into, size);
        double t = now();
        latencies[moves++] = (t - last) * 1e6;
        last = t;
    }
    cpu = cpu_of(RUSAGE_SELF) - cpu;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    qsort(latencies, moves, sizeof *latencies, ascending);
    printf("{\"moves\": %zu, \"bytes\": %zu, \"seconds\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"server_cpu\": %.3f, "
           "\"client_cpu\": %.3f}\n",
           moves, moves * size, last - start, latencies[moves / 2], latencies[(size_t)((double)(moves - 1) * 0.99)], cpu,
           cpu_of(RUSAGE_CHILDREN));
    return 0;
}
