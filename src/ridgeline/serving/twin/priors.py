"""What kernels, hosts and schedulers reach before a site has said otherwise.

Calibration multiplies these through `Factors`; docs/twin.md says where each is used.
"""

from __future__ import annotations

# What norms, rope, activations and sampling reach of the memory's bandwidth.
ELEMENTWISE_MEMORY = 0.75
# A kernel that only moves a few rows, inside a captured graph: 1.6 us on H100 and on B200 (causal_conv1d_update of one
# row in aiconfigurator 0.12's gated-delta tables). Products, attention, experts and collectives have floors of their
# own (rates.yaml); what is left of a layer are norms, rope and the cache's write before attention, norm and
# activation in the feed-forward part, and more where there is a latent, an indexer, a state, or a router.
SMALL_OP_S = 1.6e-6
MIXING_SMALL, FFN_SMALL, MLA_SMALL, INDEX_SMALL, STATE_SMALL, MOE_SMALL = 3, 2, 3, 4, 3, 3
QUANTISE_SMALL = 4
# A norm over all heads that ranks share: squares, their sum, and the scaling of queries and of keys.
SHARED_NORM_SMALL = 4
# Kernels that the host launches for one layer where no graph does: projections, norms, rope, attention and FFN; MLA and
# a mixture of experts add to them. Block-quantised weights want their activations quantised before every product.
# An indexer of sparse attention and a layer that keeps a state have kernels of their own.
LAYER_OPS, MLA_OPS, MOE_OPS, QUANTISE_OPS, INDEX_OPS, STATE_OPS = 11, 8, 12, 6, 6, 20
# On Blackwell, as far as we know, routing, both products and the sum over experts are one call of DeepSeek's and of FP4
# and MXFP4 mixtures.
ONE_CALL_MOE_OPS = 5
# Scheduling, sampling and detokenising of one iteration; overlapped with the GPU. What each request adds to it, the
# launch of a kernel without a graph, and what the processes in front of an engine take, are costs of that engine
# (`HostCosts` of its home).
HOST_STEP_S = 2.0e-3
TOKENISE_S = 2e-6  # a token of a prompt
# Attention-DP ranks agree on every batch through the CPUs, and each waits for the slowest scheduler; nothing hides it.
# Published decode steps of 16 to 72 ranks on two to nine nodes all take about 20 ms more than their kernels and
# transfers, whatever the batch. Inside one node it is lost in a step's own host time.
AGREE_S = 18e-3
# Speculative decoding: drafting, verifying and computing the draft's cache again are a graph each, with small kernels
# and the host between them. Where the host works ahead of drafts too, little of it is left (Llama-8B with EAGLE on one
# H200, SGLang 0.5.15: kernels fill 98.5% of a step of 32 requests, and about 1 ms is missing from one of a single one).
DRAFT_PHASES, DRAFT_PHASE_S, DRAFT_AHEAD_S = 3, 0.8e-3, 0.3e-3
# FlashInfer plans every pass of attention on the host, which waits for the lengths from the GPU first (sglang PR 9588,
# flashinfer_mla_backend.py); back ends that read lengths on the GPU do not.
PLANNED_BACKENDS, DRAFT_PLAN_S = frozenset({"flashinfer"}), 0.6e-3
# Triton's back end verifies drafts with its kernel for prompts (SGLang 0.5.15, extend_attention.py): a program for each
# head of each request reads all of its past by itself, whatever other heads share it. On one multiprocessor of an H200
# a token of a 128-wide head takes 70 ns (Llama-8B: 0.7 ms a layer for 32 requests of 1,350 tokens).
VERIFY_TOKEN_S, VERIFY_WIDTH = 70e-9, 128
# Share of the bandwidth that decode attention reaches on a cache in FP8, over that on one in 16 bits: half of
# the bytes took 0.94 and 0.79 of the time with FA3 on H200 and H100, 0.90 with Triton, 1.19 with FlashInfer's own
# kernels, 0.60 with TensorRT-LLM's on Blackwell, and 0.48 on a latent there (medians of SGLang 0.5.14's generation
# tables in aiconfigurator-core 0.12.0, kernels of more than 0.1 ms).
FP8_CACHE = {"fa3": 0.58, "triton": 0.56, "flashinfer": 0.42}
FP8_CACHE_BLACKWELL = {"triton": 0.56, "flashinfer": 0.83}
# Passes over the logits by softmax, top-p and sampling, in float32.
SAMPLING_PASSES = 6
# Sorting all logits for top-p: the least that it takes, and bytes moved for each (vllm PR 40376 on B200: 2.3 ms for 128
# rows of 131,072; PR 51507: half a millisecond to one for a few rows).
SORT_LEAST_S, SORT_BYTES = 0.5e-3, 1100
# Reads and writes of hidden-wide vectors per layer: norms, rope, residuals, quantisation, gate activation.
ELEMENTWISE_PASSES = 16
# 16-bit experts of a shape for which no engine ships tuned tiles: share of what tuned ones reach (DeepSeek-V2-Lite, 64
# experts, in our H200 logs). Measured tables, and so tuned tiles, are there for mixtures of these sizes.
UNTUNED_SHARE, TUNED_COUNTS = 0.58, frozenset({8, 16, 32, 128, 160, 256, 384, 512, 896})
# SGLang is taken to have tiles tuned for small batches of DeepSeek's 257 experts (the shared one among them) on Hopper,
# the tables, measured on 256, not: public steps on H200 grow as if weights were all they read. Rows of such a tile.
SMALL_TILE, SMALL_TILE_COUNT = 16.0, 256
# How unequal a trained router's experts are: the spread of the logarithm of how often each is asked for.
POPULARITY_SPREAD = 0.7
# Kernels of a mixture's layer that an engine's switch for benchmarks adds where it draws the experts itself: eight of
# 0.8 to 2.1 us, together 9.6 us (SGLang 0.5.15 on H200).
SWITCH_SMALL = 6
# Experts in FP8 blocks for whose number and width on a rank SGLang ships no tuned tiles: share of what tuned ones reach
# of the memory's bandwidth (GLM-4.5-Air on one H200: 0.68 and 0.79 of it at 4 and 32 requests, where the tables, which
# are of tuned ones, have 0.89). What it ships for the one GPU on which this was measured (0.5.15 and 0.5.23,
# fused_moe_triton/configs): experts, with the shared one or without, and their width.
UNTUNED_BLOCKS = 0.83
TUNED_BLOCKS = {
    "h200": {(64, 512), (72, 2048), (80, 640), (128, 384), (128, 768), (160, 640), (256, 256), (256, 512), (257, 128),
             (257, 256), (257, 512), (264, 256), (384, 128), (385, 128), (512, 128), (513, 512)},
}  # fmt: skip
# What DeepGEMM's contiguous kernel reaches of the tensor cores' peak, on Hopper and on Blackwell, where every expert is
# filled up to whole tiles (chosen on steps of Qwen3-235B under vLLM 0.11 and 0.12).
FILLED_PEAK = (0.4, 0.22)
# What activation and quantising between its two products move for each of an expert's columns and each computed row:
# 16 bits of both halves read, of one written and read again, 8 bits written.
FILLED_BYTES = 9
# Stages of a pipeline wait when neighbours differ; SGLang runs PP without overlapped scheduling.
PIPELINE_BUBBLE = 1.05

# SGLang's share of the remaining answer that it keeps free for each running request: where it starts, where it ends,
# and over how many decode steps it decays. --schedule-conservativeness multiplies the start.
NEW_TOKEN_SHARE, FINAL_SHARE_OF_START, DECAY_STEPS = 0.7, 0.14, 600
# Of no answer it keeps more free, however long it may get (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION, 0.4.6 to 0.5.23).
MOST_NEW_TOKENS = 4096
