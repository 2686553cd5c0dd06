/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes as bytes: docs/reference/tier-format.md, "node". Nothing read from disk is trusted before
 * its length, its counts and its check agree. */
#include <math.h>
#include <string.h>

#include "store_internal.h"

enum { FORM_DECODE = 1 }; /* the highest form of a stretch that format 1 has */

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian");

static uint64_t arrays_bytes(const struct node_head *head, uint32_t edge_count)
{
    return (uint64_t)head->shard_count * sizeof(struct node_shard) +
        (uint64_t)head->extent_count * sizeof(struct node_extent) +
        (uint64_t)head->history_count * sizeof(struct sc_stretch) +
        (uint64_t)head->mark_count * sizeof(sc_mark) + (uint64_t)edge_count * sizeof(int32_t);
}

/* Extents of the shards follow each other and hold the payloads. */
static bool shards_agree(const struct node_view *view)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < view->head.shard_count; i++) {
        struct node_shard shard = node_shard_at(view, i);
        uint64_t bytes = shard.state_bytes + shard.kv_bytes, blocks = 0;
        if ((shard.flags & ~(uint32_t)(SC_STORE_LOSSY | SC_STORE_ZSTD)) != 0) return false;
        if (shard.tp_size == 0 || shard.pp_size == 0) return false;
        if (bytes < shard.state_bytes || bytes == 0) return false;
        if (shard.extent_first != at || shard.extent_count == 0) return false;
        if (shard.extent_count > SC_STORE_EXTENTS_MAX) return false;
        at += shard.extent_count;
        if (at > view->head.extent_count) return false;
        for (uint32_t e = 0; e < shard.extent_count; e++) {
            struct node_extent extent = node_extent_at(view, shard.extent_first + e);
            if (extent.count == 0 || extent.reserved != 0) return false;
            blocks += extent.count;
        }
        if (blocks != (bytes - 1) / TIER_BLOCK + 1) return false;
    }
    return at == view->head.extent_count;
}

static bool arrays_agree(const struct node_view *view)
{
    const struct node_head *head = &view->head;
    uint32_t end = head->parent_len, last = 0;
    for (uint32_t i = 0; i < head->mark_count; i++) {
        sc_mark mark;
        memcpy(&mark, view->marks + i * sizeof mark, sizeof mark);
        if (mark.at < end || mark.at >= head->token_count) return false;
        end = mark.at + 1;
    }
    for (uint32_t i = 0; i < head->history_count; i++) {
        struct sc_stretch stretch;
        memcpy(&stretch, view->history + i * sizeof stretch, sizeof stretch);
        if (stretch.end <= last || stretch.form > FORM_DECODE) return false;
        last = stretch.end;
    }
    return head->history_count == 0 || last == head->token_count;
}

sc_status node_parse(const void *bytes, size_t count, struct node_view *view_out)
{
    struct node_view view = {.bytes = bytes};
    struct node_head *head = &view.head;
    uint64_t check;
    if (count < sizeof *head + sizeof check) {
        return SC_FAIL(SC_ERR_CORRUPT, "a node of %zu bytes", count);
    }
    memcpy(head, bytes, sizeof *head);
    bool has_record = (head->flags & NODE_RECORD) != 0;
    if (head->magic != NODE_MAGIC || head->bytes != count) {
        return SC_FAIL(SC_ERR_CORRUPT, "a node does not begin as one");
    }
    if (head->parent_len >= head->token_count || head->token_count > SC_STORE_TOKENS_MAX ||
        (head->parent == NONE) != (head->parent_len == 0)) {
        return SC_FAIL(SC_ERR_CORRUPT, "a node of %u tokens after %u", head->token_count,
            head->parent_len);
    }
    view.edge_count = head->token_count - head->parent_len;
    if (sizeof *head + arrays_bytes(head, view.edge_count) + sizeof check != count ||
        (head->flags & ~(uint32_t)(NODE_RECORD | NODE_KV)) != 0 || !isfinite(head->value) ||
        has_record != (head->shard_count > 0) || head->shard_count > SC_STORE_SHARDS_MAX) {
        return SC_FAIL(SC_ERR_CORRUPT, "the parts of a node do not add up to its length");
    }
    memcpy(&check, view.bytes + count - sizeof check, sizeof check);
    if (check != store_check64(bytes, count - sizeof check)) {
        return SC_FAIL(SC_ERR_CORRUPT, "a node failed its check");
    }
    view.shards = view.bytes + sizeof *head;
    view.extents = view.shards + head->shard_count * sizeof(struct node_shard);
    view.history = view.extents + head->extent_count * sizeof(struct node_extent);
    view.marks = view.history + head->history_count * sizeof(struct sc_stretch);
    view.tokens = view.marks + head->mark_count * sizeof(sc_mark);
    if (!shards_agree(&view) || !arrays_agree(&view)) {
        return SC_FAIL(SC_ERR_CORRUPT, "the parts of a node contradict each other");
    }
    *view_out = view;
    return SC_OK;
}

struct node_shard node_shard_at(const struct node_view *view, uint32_t shard)
{
    struct node_shard out;
    memcpy(&out, view->shards + (size_t)shard * sizeof out, sizeof out);
    return out;
}

struct node_extent node_extent_at(const struct node_view *view, uint32_t extent)
{
    struct node_extent out;
    memcpy(&out, view->extents + (size_t)extent * sizeof out, sizeof out);
    return out;
}

uint64_t node_payload_bytes(const struct node_view *view)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < view->head.shard_count; i++) {
        struct node_shard shard = node_shard_at(view, i);
        bytes += shard.state_bytes + shard.kv_bytes;
    }
    return bytes;
}

size_t node_bytes(const struct node_parts *parts)
{
    uint32_t edge_count = parts->head.token_count - parts->head.parent_len;
    return sizeof parts->head + (size_t)arrays_bytes(&parts->head, edge_count) + sizeof(uint64_t);
}

static uint8_t *append(uint8_t *at, const void *bytes, size_t count)
{
    if (count > 0) memcpy(at, bytes, count);
    return at + count;
}

void node_build(const struct node_parts *parts, uint8_t *out)
{
    struct node_head head = parts->head;
    size_t bytes = node_bytes(parts);
    uint32_t edge_count = head.token_count - head.parent_len;
    head.magic = NODE_MAGIC;
    head.bytes = (uint32_t)bytes;
    uint8_t *at = append(out, &head, sizeof head);
    at = append(at, parts->shards, head.shard_count * sizeof *parts->shards);
    at = append(at, parts->extents, head.extent_count * sizeof *parts->extents);
    at = append(at, parts->history, head.history_count * sizeof *parts->history);
    at = append(at, parts->marks, head.mark_count * sizeof *parts->marks);
    at = append(at, parts->tokens, edge_count * sizeof *parts->tokens);
    uint64_t check = store_check64(out, (size_t)(at - out));
    at = append(at, &check, sizeof check);
    SC_ASSERT((size_t)(at - out) == bytes);
}

size_t node_make_edge(uint8_t *bytes, const struct node_view *view)
{
    struct node_head head = view->head;
    size_t tail = head.mark_count * sizeof(sc_mark) + view->edge_count * sizeof(int32_t);
    head.flags = 0;
    head.shard_count = head.extent_count = head.history_count = 0;
    head.bytes = (uint32_t)(sizeof head + tail + sizeof(uint64_t));
    memmove(bytes + sizeof head, bytes + (view->marks - view->bytes), tail);
    memcpy(bytes, &head, sizeof head);
    uint64_t check = store_check64(bytes, sizeof head + tail);
    memcpy(bytes + sizeof head + tail, &check, sizeof check);
    return head.bytes;
}
