/*
 * The client interface of cuObject, as its specification describes it ("cuObjClient API Specification"). Programs that
 * were compiled for that library find the same names, types and calling conventions here.
 *
 * A cuObjClient makes memory reachable for a server and tells, for each transfer, the token that the S3 request
 * carries. Requests are the caller's: the callbacks, or whoever asked for a token, send them.
 *
 * Any thread may call anything. Nothing throws. After a fork the child's calls work on memory that the child registers.
 */
#ifndef CUOBJCLIENT_H
#define CUOBJCLIENT_H

#include <sys/types.h>

#include <cstddef>
#include <iosfwd>

#define OBJ_RDMA_V1 "CUOBJ"

/* Bytes that one registration can have. */
#define CUOBJ_MAX_MEMORY_REG_SIZE (4ULL * 1024 * 1024 * 1024 - 64 * 1024)

/* Bits for setTelemFlags. */
#define CUOBJ_LOG_PATH_INFO 0x0001
#define CUOBJ_LOG_PATH_DEBUG 0x0002
#define CUOBJ_LOG_PATH_ERROR 0x0004

typedef enum cuObjErr_enum { CU_OBJ_SUCCESS = 0, CU_OBJ_FAIL = 1 } cuObjErr_t;

/* Kept for callers that name it; which transport is used is decided by the library's configuration. */
typedef enum cuObjProto_enum { CUOBJ_PROTO_RDMA_DC_V1 = 1001, CUOBJ_PROTO_MAX } cuObjProto_t;

typedef enum cuObjOpType_enum { CUOBJ_GET = 0, CUOBJ_PUT = 1, CUOBJ_INVALID = 9999 } cuObjOpType_t;

typedef enum cuObjMemoryType_enum {
    CUOBJ_MEMORY_SYSTEM = 0,
    CUOBJ_MEMORY_CUDA_MANAGED = 1,
    CUOBJ_MEMORY_CUDA_DEVICE = 2,
    CUOBJ_MEMORY_UNKNOWN = 3,
    CUOBJ_MEMORY_INVALID = 4
} cuObjMemoryType_t;

/* The token of one transfer: `desc_len` characters and a zero. It is the library's, until the callback returns. */
typedef struct cufileRDMAInfo {
    int version;
    int desc_len;
    const char* desc_str;
} cufileRDMAInfo_t;

/*
 * What cuObjGet and cuObjPut call, on the caller's thread: `size` bytes at `ptr`, `offset` as it was given. They return
 * the bytes moved, or a negative errno. A callback may take a copy of the token and send the request later: the token
 * is good as long as the memory is registered.
 */
typedef struct CUObjIOOps {
    ssize_t (*get)(const void* handle, char* ptr, size_t size, loff_t offset, const cufileRDMAInfo_t* rdma_info);
    ssize_t (*put)(const void* handle, const char* ptr, size_t size, loff_t offset, const cufileRDMAInfo_t* rdma_info);
} CUObjOps_t;

class __attribute__((visibility("default"))) cuObjClient {
public:
    /* `ops` is copied. Never fails: ask isConnected(). */
    cuObjClient(CUObjOps_t& ops, cuObjProto_t proto = CUOBJ_PROTO_RDMA_DC_V1);

    /* Takes back what this client registered and did not release; that can take some seconds. */
    ~cuObjClient();

    cuObjClient(const cuObjClient&) = delete;
    cuObjClient& operator=(const cuObjClient&) = delete;

    /*
     * Registers `size` bytes at `ptr`, at most CUOBJ_MAX_MEMORY_REG_SIZE. They must stay mapped until they are
     * released. Registering an address again counts, and may name more bytes than before. All clients of a process
     * share them. CU_OBJ_FAIL: a null pointer, size 0, too large, not mapped, managed memory, or no transport takes it;
     * the log says why.
     */
    cuObjErr_t cuMemObjGetDescriptor(void* ptr, size_t size);

    /*
     * Takes one registration of the address back. The last one returns when no server can touch the memory any more:
     * then it may be freed. CU_OBJ_FAIL: a server may still touch it after some seconds of waiting; call again. An
     * address that is not registered is a success.
     */
    cuObjErr_t cuMemObjPutDescriptor(void* ptr);

    /* Bytes that one callback can be given for memory at `ptr`; negative when it is not registered. */
    ssize_t cuMemObjGetMaxRequestCallbackSize(void* ptr);

    /*
     * A token for `size` bytes at `ptr` + `buffer_offset`, which must lie in one registration. `*desc_str_out` is freed
     * by cuMemObjPutRDMAToken; the token is good, freed or not, as long as the memory is registered.
     */
    cuObjErr_t cuMemObjGetRDMAToken(void* ptr, size_t size, size_t buffer_offset, cuObjOpType_t operation,
                                    char** desc_str_out);
    cuObjErr_t cuMemObjPutRDMAToken(char* desc_str);

    /*
     * Calls the callback once, with a token for `size` bytes at `ptr` + `buf_offset`. What the callback returned, or a
     * negative errno: EINVAL for arguments that cannot be meant and memory that is not registered, EIO when there is no
     * token (the log says why) or the callback threw.
     */
    ssize_t cuObjGet(void* ctx, void* ptr, size_t size, loff_t offset = 0, loff_t buf_offset = 0);
    ssize_t cuObjPut(void* ctx, void* ptr, size_t size, loff_t offset = 0, loff_t buf_offset = 0);

    /* Whether there is a transport. It looks again when there was none. */
    bool isConnected(void);

    /* The `ctx` of the transfer that a callback was given `handle` for. */
    static void* getCtx(const void* handle);

    static cuObjMemoryType_t getMemoryType(const void* ptr);

    /*
     * Log lines go to `os` too, from any thread, one at a time, until shutdownTelemetry. Without OpenTelemetry support,
     * as here, `use_OTEL` changes nothing.
     */
    static void setupTelemetry(bool use_OTEL, std::ostream* os);
    static void shutdownTelemetry();
    static void setTelemFlags(unsigned flags);

private:
    /* One pointer: callers reserve the room for the object by their own header. */
    void* implementation_;
};

#endif
