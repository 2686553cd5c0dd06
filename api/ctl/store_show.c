/* SPDX-License-Identifier: Apache-2.0 */
/* store ls, store dump. */
#include <stdlib.h>
#include <string.h>

#include "ctl.h"

#define U(x) ((unsigned long long)(x))

static void print_flags(const struct sc_store_shard_info *shard)
{
    (void)printf("%s%s%s", ctl_codec_name(shard->codec),
        shard->flags & SC_STORE_ZSTD ? "+zstd" : "", shard->flags & SC_STORE_LOSSY ? " (lossy)" :
        "");
}

static void json_parent(const struct sc_store_info *info)
{
    if (info->parent == SC_STORE_NO_PARENT) (void)printf("\"parent\":null,");
    else (void)printf("\"parent\":%u,", info->parent);
}

static void ls_json(const struct sc_store_edge *edge, const struct sc_store_shard_info *shard)
{
    const struct sc_store_info *info = &edge->info;
    (void)printf("{\"type\":\"%s\",\"id\":%u,", info->has_record ? "record" : "edge", info->id);
    json_parent(info);
    (void)printf("\"parent_len\":%u,\"token_count\":%u,\"payload_bytes\":%llu,"
        "\"disk_bytes\":%llu,\"shard_count\":%u,\"value\":%.17g,\"stored_ns\":%llu,",
        info->parent_len, info->token_count, U(info->payload_bytes), U(info->disk_bytes),
        info->shard_count, info->value, U(info->stored_ns));
    if (shard) {
        (void)printf("\"codec\":\"%s\",\"zstd\":%s,\"lossy\":%s,", ctl_codec_name(shard->codec),
            shard->flags & SC_STORE_ZSTD ? "true" : "false",
            shard->flags & SC_STORE_LOSSY ? "true" : "false");
    }
    (void)printf("\"numerics\":%u,\"adapter_id\":%llu,\"adapter_generation\":%llu,"
        "\"mark_count\":%u,\"fingerprint\":\"", info->numerics, U(edge->adapter_id),
        U(edge->adapter_generation), edge->mark_count);
    ctl_hex(stdout, edge->fingerprint.bytes, 16);
    (void)printf("\"}\n");
}

static void ls_text(const struct sc_store_edge *edge, const struct sc_store_shard_info *shard)
{
    const struct sc_store_info *info = &edge->info;
    (void)printf("%8u ", info->id);
    if (info->parent == SC_STORE_NO_PARENT) (void)printf("%8s ", "-");
    else (void)printf("%8u ", info->parent);
    (void)printf("%8u %12llu %12llu %7u %10.4g  ", info->token_count, U(info->payload_bytes),
        U(info->disk_bytes), info->shard_count, info->value);
    ctl_hex(stdout, edge->fingerprint.bytes, 4);
    (void)printf("  ");
    if (shard) print_flags(shard);
    else (void)printf("only an edge");
    (void)printf("\n");
}

static int totals(const struct ctl_options *options, struct sc_store *store)
{
    struct sc_store_stats stats;
    if (sc_store_stats_get(store, &stats) != SC_OK) return ctl_fail("figures", CTL_FAILED);
    (void)printf(options->json ?
        "{\"type\":\"totals\",\"record_count\":%llu,\"edge_count\":%llu,\"used_bytes\":%llu,"
        "\"file_count\":%llu,\"file_bytes\":%llu,\"written_bytes\":%llu,"
        "\"metadata_bytes\":%llu}\n" :
        "%llu records, %llu edges, %llu bytes in %llu files of %llu; %llu bytes written in all; "
        "%llu bytes of metadata\n", U(stats.record_count), U(stats.edge_count),
        U(stats.used_bytes), U(stats.file_count), U(stats.file_bytes), U(stats.written_bytes),
        U(stats.map_used_bytes));
    return CTL_OK;
}

int ctl_ls(const struct ctl_options *options, struct sc_store *store)
{
    struct sc_store_iter *iter = NULL;
    struct sc_store_edge edge;
    if (sc_store_iter_open(store, &iter) != SC_OK) return ctl_fail("listing", CTL_FAILED);
    if (!options->json) {
        (void)printf("%8s %8s %8s %12s %12s %7s %10s  %-8s  %s\n", "id", "parent", "tokens",
            "payload", "on disk", "shards", "value", "model", "codec");
    }
    sc_status status;
    while ((status = sc_store_iter_next(iter, &edge)) == SC_OK) {
        struct sc_store_reader *reader = NULL;
        struct sc_store_shard_info shard;
        bool has = edge.info.has_record &&
            sc_store_reader_open_id(store, edge.info.id, &reader) == SC_OK &&
            sc_store_reader_shard(reader, 0, &shard) == SC_OK;
        if (options->json) ls_json(&edge, has ? &shard : NULL);
        else ls_text(&edge, has ? &shard : NULL);
        sc_store_reader_close(reader);
    }
    sc_store_iter_close(iter);
    if (status != SC_ERR_NOT_FOUND) return ctl_fail("listing", CTL_FAILED);
    return totals(options, store);
}

/* ---- dump ---- */

static void dump_shard(const struct ctl_options *options, const struct sc_store_shard_info *shard,
    uint32_t index)
{
    const sc_shard *part = &shard->shard;
    if (options->json) {
        (void)printf("%s{\"tp_rank\":%u,\"tp_size\":%u,\"pp_rank\":%u,\"pp_size\":%u,"
            "\"layer_first\":%u,\"layer_count\":%u,\"codec\":\"%s\",\"zstd\":%s,\"lossy\":%s,"
            "\"state_bytes\":%llu,\"kv_bytes\":%llu,\"plain_bytes\":%llu,\"extent_count\":%u,"
            "\"xxh3\":\"%016llx%016llx\"}", index ? "," : "", part->tp_rank, part->tp_size,
            part->pp_rank, part->pp_size, part->layer_first, part->layer_count,
            ctl_codec_name(shard->codec), shard->flags & SC_STORE_ZSTD ? "true" : "false",
            shard->flags & SC_STORE_LOSSY ? "true" : "false", U(shard->state_bytes),
            U(shard->kv_bytes), U(shard->plain_bytes), shard->extent_count,
            U(shard->check_high), U(shard->check_low));
        return;
    }
    (void)printf("shard %u       tensor %u of %u, pipeline %u of %u, layers from %u, %u (0: all)\n"
        "  state       %llu bytes, ", index, part->tp_rank, part->tp_size, part->pp_rank,
        part->pp_size, part->layer_first, part->layer_count, U(shard->state_bytes));
    print_flags(shard);
    (void)printf(", %llu before compression\n  KV          %llu bytes\n  extents     %u\n"
        "  XXH3-128    %016llx%016llx\n", U(shard->plain_bytes), U(shard->kv_bytes),
        shard->extent_count, U(shard->check_high), U(shard->check_low));
}

static void dump_head(const struct ctl_options *options, const struct sc_store_info *info,
    const struct sc_store_key *key, struct sc_store_hash hash)
{
    if (options->json) {
        (void)printf("{\"id\":%u,", info->id);
        json_parent(info);
        (void)printf("\"parent_len\":%u,\"token_count\":%u,\"numerics\":%u,\"kind\":%u,"
            "\"value\":%.17g,\"stored_ns\":%llu,\"adapter_id\":%llu,"
            "\"adapter_generation\":%llu,\"hash\":\"%016llx%016llx\",\"fingerprint\":\"",
            info->parent_len, info->token_count, info->numerics, info->kind, info->value,
            U(info->stored_ns), U(key->adapter_id), U(key->adapter_generation), U(hash.high),
            U(hash.low));
        ctl_hex(stdout, key->fingerprint.bytes, 16);
        (void)printf("\",\"marks\":[");
        for (uint32_t i = 0; i < key->mark_count; i++) {
            (void)printf("%s{\"at\":%u,\"id\":\"", i ? "," : "", key->marks[i].at);
            ctl_hex(stdout, key->marks[i].id, 16);
            (void)printf("\"}");
        }
        (void)printf("],\"shards\":[");
        return;
    }
    (void)printf("record        %u\ntokens        %u, KV from %u on\nmodel         ", info->id,
        info->token_count, info->parent_len);
    ctl_hex(stdout, key->fingerprint.bytes, 16);
    (void)printf("\nadapter       %llu, generation %llu\nnumerics      %u\nkind          %u\n"
        "value         %g\nstored        %llu ns\nhash          %016llx%016llx\n",
        U(key->adapter_id), U(key->adapter_generation), info->numerics, info->kind, info->value,
        U(info->stored_ns), U(hash.high), U(hash.low));
    for (uint32_t i = 0; i < key->mark_count; i++) {
        (void)printf("mark          at %u: ", key->marks[i].at);
        ctl_hex(stdout, key->marks[i].id, 16);
        (void)printf("\n");
    }
}

static void dump_tail(const struct ctl_options *options, const struct sc_store_key *key,
    const struct sc_stretch *history, uint32_t history_count)
{
    const char *comma = options->json ? "," : " ";
    (void)printf(options->json ? "],\"history\":[" : "history      ");
    for (uint32_t i = 0; i < history_count; i++) {
        (void)printf(options->json ? "%s{\"end\":%u,\"form\":\"%s\"}" : "%sup to %u %s;",
            options->json && i == 0 ? "" : comma, history[i].end,
            history[i].form == SC_FORM_PREFILL ? "prefill" : "decode");
    }
    if (options->json) (void)printf("]");
    if (options->tokens) {
        (void)printf(options->json ? ",\"tokens\":[" : "\ntokens       ");
        for (uint32_t i = 0; i < key->token_count; i++) {
            (void)printf("%s%d", options->json && i == 0 ? "" : comma, key->tokens[i]);
        }
        if (options->json) (void)printf("]");
    }
    (void)printf(options->json ? "}\n" : "\n");
}

static int dump(const struct ctl_options *options, struct sc_store_reader *reader,
    struct sc_store_key *key, struct sc_stretch *history)
{
    struct sc_store_info info;
    struct sc_store_hash hash;
    uint32_t count = 0;
    sc_store_reader_info(reader, &info);
    if (sc_store_key_hash(key, &hash) != SC_OK) return ctl_fail("its key", CTL_FAILED);
    if (sc_store_reader_history(reader, history, info.history_count, &count) != SC_OK) {
        return ctl_fail("its history", CTL_FAILED);
    }
    dump_head(options, &info, key, hash);
    for (uint32_t i = 0; i < info.shard_count; i++) {
        struct sc_store_shard_info shard;
        if (sc_store_reader_shard(reader, i, &shard) != SC_OK) {
            return ctl_fail("a shard", CTL_FAILED);
        }
        dump_shard(options, &shard, i);
    }
    dump_tail(options, key, history, count);
    return CTL_OK;
}

int ctl_dump(const struct ctl_options *options, struct sc_store *store)
{
    struct sc_store_reader *reader = NULL;
    struct sc_store_info info;
    struct sc_store_key key;
    if (sc_store_reader_open_id(store, options->id, &reader) != SC_OK) {
        return ctl_fail("dump", CTL_FAILED);
    }
    sc_store_reader_info(reader, &info);
    int code = CTL_FAILED;
    if (sc_store_reader_key(reader, NULL, 0, NULL, 0, &key) != SC_ERR_LIMIT) {
        code = ctl_fail("its key", CTL_FAILED);
    } else {
        int32_t *tokens = calloc(key.token_count, sizeof *tokens);
        sc_mark *marks = calloc(key.mark_count + 1, sizeof *marks);
        struct sc_stretch *history = calloc(info.history_count + 1, sizeof *history);
        if (!tokens || !marks || !history) {
            (void)fprintf(stderr, "statecachectl: no memory\n");
        } else if (sc_store_reader_key(reader, tokens, key.token_count, marks, key.mark_count,
            &key) != SC_OK) {
            code = ctl_fail("its key", CTL_FAILED);
        } else {
            code = dump(options, reader, &key, history);
        }
        free(tokens);
        free(marks);
        free(history);
    }
    sc_store_reader_close(reader);
    return code;
}
