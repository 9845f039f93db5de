/*
 * The client engine for other languages: register memory, get tokens for requests, take the memory back.
 *
 * A token goes into the header x-amz-rdma-token of a signed S3 request; the server then moves the payload between the
 * object and the memory. Format: docs/wire-format.md of the project.
 *
 * Any thread may call anything, in any process: a forked child works on memory that it registers itself. Functions that
 * return int return 0, or -1 with the reason in s3verbs_error().
 */
#ifndef S3VERBS_H
#define S3VERBS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define S3VERBS_API __attribute__((visibility("default")))

/* Room for any token and its final zero. */
#define S3VERBS_TOKEN_SIZE 128

/* Sums since the first s3verbs_init, but for the first three. */
struct s3verbs_counters {
    uint64_t regions;               /* registered now */
    uint64_t region_bytes;          /* in them; memory that is in two counts twice */
    uint64_t quarantined;           /* released regions that a server may still touch */
    uint64_t registrations;         /* asked for and made */
    uint64_t registration_failures; /* asked for and not made */
    uint64_t release_failures;      /* releases that could not make sure */
    uint64_t tokens;                /* made */
    uint64_t token_failures;        /* asked for and not made */
    uint64_t gets, puts;            /* callbacks of cuObjGet and cuObjPut that succeeded */
    uint64_t get_bytes, put_bytes;  /* that those reported */
    uint64_t callback_failures;
};

/*
 * Reads the configuration and looks for a transport. -1: there is none, or a setting cannot be used. A process may call
 * it often: each call, failed or not, needs one of s3verbs_shutdown.
 */
S3VERBS_API int s3verbs_init(void);

/* The last one takes back all memory that is still registered by this interface; it waits at most some seconds. */
S3VERBS_API void s3verbs_shutdown(void);

/*
 * Let servers reach `size` bytes at `address`, host or GPU memory, at most 4 GiB - 64 KiB. They stay the caller's, who
 * keeps them mapped until s3verbs_release. An address can be registered more than once; each needs its release.
 */
S3VERBS_API int s3verbs_register(void* address, size_t size);

/*
 * Take one registration of that address back. 0: the last one is gone, and no server can touch the memory any more; or
 * there are others; or there was none. -1: a server may still touch it after some seconds of waiting; call again.
 */
S3VERBS_API int s3verbs_release(void* address);

/*
 * Write a token for `size` bytes at `address`, which lie within one registration, into `token` with room for `capacity`
 * characters, final zero included. It is good until the memory is released, but ask anew for each request: a server may
 * have been restarted, a device may have failed.
 */
S3VERBS_API int s3verbs_token(const void* address, size_t size, char* token, size_t capacity);

/* Zero where there is no engine. */
S3VERBS_API void s3verbs_get_counters(struct s3verbs_counters* counters);

/* Why the last call of this thread that failed did. Never null; the library's, until the thread's next call. */
S3VERBS_API const char* s3verbs_error(void);

#ifdef __cplusplus
}
#endif

#endif
