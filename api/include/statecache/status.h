/* SPDX-License-Identifier: Apache-2.0 */
/** Status codes, error details, the allocator and the log hook: what every other header needs.
 *
 * Every call that can fail returns an `sc_status`: 0 is success, negative is failure. A cache miss
 * and "no room" inside a batch are answers per item, not failures of the call. */
#ifndef STATECACHE_STATUS_H
#define STATECACHE_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#error "statecache supports POSIX systems only"
#endif
#define SC_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

#define SC_VERSION_MAJOR 0
#define SC_VERSION_MINOR 1
#define SC_VERSION_PATCH 0

/** One list yields the enum, the names and the texts. Numbers are never reused. */
#define SC_STATUS_LIST(X)                                                                          \
    X(SC_OK, 0, "success")                                                                         \
    X(SC_ERR_INVALID, -1, "an argument is outside what the call accepts")                          \
    X(SC_ERR_NO_MEMORY, -2, "the allocator returned no memory")                                    \
    X(SC_ERR_NO_SLOT, -3, "no free or evictable slot: try again after a release")                  \
    X(SC_ERR_STALE, -4, "the handle names something that no longer exists")                        \
    X(SC_ERR_BUSY, -5, "the object is in use in a way that excludes this call")                    \
    X(SC_ERR_STATE, -6, "the call does not fit the state of the object")                           \
    X(SC_ERR_NOT_FOUND, -7, "nothing by that name exists")                                         \
    X(SC_ERR_MISMATCH, -8, "shapes, lengths or fingerprints do not agree")                         \
    X(SC_ERR_LIMIT, -9, "a limit given at creation is reached")                                    \
    X(SC_ERR_OVERFLOW, -10, "a size or position does not fit its type")                            \
    X(SC_ERR_UNSUPPORTED, -11, "no eligible implementation; what is missing is in the error text") \
    X(SC_ERR_CORRUPT, -12, "bytes failed their check")                                             \
    X(SC_ERR_IO, -13, "the operating system reported an I/O error")                                \
    X(SC_ERR_DEVICE_LOST, -14, "the device failed; it cannot be used again")                       \
    X(SC_ERR_LOST, -15, "the state of this lease is unknown after an aborted step: release it")    \
    X(SC_ERR_AGAIN, -16, "not now: a limit of the service is reached, try again later")            \
    X(SC_ERR_DENIED, -17, "the service does not let this client do that")                          \
    X(SC_ERR_CLOSED, -18, "the connection to the service has ended")

typedef enum sc_status {
#define SC_STATUS_ENUM(name, value, text) name = value,
    SC_STATUS_LIST(SC_STATUS_ENUM)
#undef SC_STATUS_ENUM
} sc_status;

/** Name ("SC_ERR_NO_SLOT") and text of a status; never NULL, also for unknown numbers. Threads:
 * any. */
SC_API const char *sc_status_name(sc_status status);
SC_API const char *sc_status_text(sc_status status);

/** Version of the library that is loaded, as "major.minor.patch". Threads: any. */
SC_API const char *sc_version(void);

/** Where and why the last failing call on this thread failed. */
typedef struct sc_error_info {
    sc_status status;
    int system_code;       /* errno, or 0 */
    const char *function;  /* static; where the fault was detected */
    char text[200];        /* NUL-terminated, one line */
} sc_error_info;

/** Details of the last failure on the calling thread; meaningful only just after a call failed, or
 * returned SC_OK with a failed item: there is one record, so that it tells of the last item that
 * failed. Never NULL. The record is overwritten by the next failure on this thread. */
SC_API const sc_error_info *sc_last_error(void);

/** Memory for the library's own bookkeeping. `alloc` returns NULL when there is none; `align` is a
 * power of two; `free` is given the size that was asked for. Both may be called from any thread
 * that calls the library. The struct is copied; `ctx` must outlive every object created with it. */
typedef struct sc_allocator {
    void *ctx;
    void *(*alloc)(void *ctx, size_t bytes, size_t align);
    void (*free)(void *ctx, void *ptr, size_t bytes);
} sc_allocator;

enum sc_log_level { SC_LOG_DEBUG = 0, SC_LOG_INFO = 1, SC_LOG_WARN = 2, SC_LOG_ERROR = 3 };

/** One `key=value` field of a log record. */
typedef struct sc_log_field {
    const char *key;   /* static */
    const char *value; /* valid during the call */
} sc_log_field;

typedef struct sc_log_record {
    const char *event; /* static name, such as "pool.created" */
    const sc_log_field *fields;
    uint32_t field_count;
} sc_log_record;

/** Receives log records. Called on the thread that caused the record, without locks held that the
 * callee could need; it must not call the library back. */
typedef void (*sc_log_fn)(void *ctx, enum sc_log_level level, const sc_log_record *record);

/** Installs the process-wide log receiver; NULL restores silence, the default. Threads: call while
 * no other thread is inside the library. */
SC_API void sc_log_set(sc_log_fn fn, void *ctx, enum sc_log_level level_min);

/** Subsystems whose heap use is accounted apart. */
enum sc_subsystem {
    SC_SUBSYSTEM_POOL = 0,
    SC_SUBSYSTEM_RADIX = 1,
    SC_SUBSYSTEM_SNAPSHOT = 2,
    SC_SUBSYSTEM_KERNELS = 3,
    SC_SUBSYSTEM_ENGINE = 4,
    SC_SUBSYSTEM_COUNT = 5
};

typedef struct sc_heap_stats {
    uint64_t live_bytes;      /* the subsystem's own count of what it asked for and has not freed */
    uint64_t live_count;      /* allocations alive */
    uint64_t foreign_bytes;   /* of live_bytes, what a caller's sc_allocator serves */
    uint64_t allocated_bytes; /* jemalloc: live bytes of the arena, size classes included; else 0 */
    uint64_t resident_bytes;  /* jemalloc: resident bytes of the arena; else 0 */
    bool has_arena;           /* a jemalloc arena serves the subsystem */
} sc_heap_stats;

/** Heap use of the whole process by subsystem (slot memory of pools is not heap).
 * Errors: SC_ERR_INVALID. Cost: refreshes jemalloc's epoch, microseconds. Threads: any. */
SC_API sc_status sc_heap_stats_get(enum sc_subsystem subsystem, sc_heap_stats *stats_out);

/** Memory of a backend as an integer, so that the host cannot dereference device memory by
 * accident. On the host backend it is the address. 0 is "none". */
typedef uint64_t sc_devptr;

#ifdef __cplusplus
}
#endif
#endif
