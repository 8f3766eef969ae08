#define _GNU_SOURCE
#include "policy/kinds.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

/* Read from top to bottom; the first that occurs in the name decides. Layout changes inside convolution
 * libraries and normalizations come first: their names hold the words of the second group too. */
static const struct {
    const char *word;
    gate_kind kind;
} words[] = {
    {"nccl", GATE_UNKNOWN},
    {"nchwtonhwc", GATE_MEMORY},
    {"nhwctonchw", GATE_MEMORY},
    {"tensortransform", GATE_MEMORY},
    {"splitkreduce", GATE_MEMORY},
    {"elementwise", GATE_MEMORY},
    {"bn_fw", GATE_MEMORY},
    {"bn_bw", GATE_MEMORY},
    {"batch_norm", GATE_MEMORY},
    {"batchnorm", GATE_MEMORY},
    {"layer_norm", GATE_MEMORY},
    {"layernorm", GATE_MEMORY},
    {"gammabeta", GATE_MEMORY},
    {"softmax", GATE_MEMORY},
    {"reduce", GATE_MEMORY},
    {"pool", GATE_MEMORY},
    {"multi_tensor", GATE_MEMORY},
    {"catarray", GATE_MEMORY},
    {"embedding", GATE_MEMORY},
    {"dropout", GATE_MEMORY},
    {"fill", GATE_MEMORY},
    {"copy", GATE_MEMORY},
    {"memset", GATE_MEMORY},
    {"transpose", GATE_MEMORY},
    {"index", GATE_MEMORY},
    {"scatter", GATE_MEMORY},
    {"gather", GATE_MEMORY},
    {"nll_loss", GATE_MEMORY},
    {"upsample", GATE_MEMORY},
    {"triton_poi", GATE_MEMORY},
    {"triton_red", GATE_MEMORY},
    {"triton_per", GATE_MEMORY},
    {"gemv", GATE_MEMORY},
    {"depthwise", GATE_MEMORY},
    {"dgrad2d_grouped", GATE_MEMORY},
    {"gemm", GATE_COMPUTE},
    {"nvjet", GATE_COMPUTE},
    {"cutlass", GATE_COMPUTE},
    {"xmma", GATE_COMPUTE},
    {"winograd", GATE_COMPUTE},
    {"conv", GATE_COMPUTE},
    {"fprop", GATE_COMPUTE},
    {"dgrad", GATE_COMPUTE},
    {"wgrad", GATE_COMPUTE},
    {"flash", GATE_COMPUTE},
    {"fmha", GATE_COMPUTE},
    {"attention", GATE_COMPUTE},
    {"mma", GATE_COMPUTE},
    {"lstm", GATE_COMPUTE},
    {"rnn", GATE_COMPUTE},
};

gate_kind kind_by_name(const char *name) {
    for (size_t index = 0; name && index < sizeof words / sizeof *words; index++)
        if (strcasestr(name, words[index].word)) return words[index].kind;
    return GATE_UNKNOWN;
}

static const char *const names[GATE_KINDS] = {"unknown", "compute", "memory", "copy", "before"};

const char *kind_name(uint32_t kind) { return kind < GATE_KINDS ? names[kind] : "unknown"; }

gate_kind kind_number(const char *name) {
    for (int kind = 0; kind < GATE_KINDS; kind++)
        if (strcmp(names[kind], name) == 0) return (gate_kind)kind;
    return GATE_UNKNOWN;
}
