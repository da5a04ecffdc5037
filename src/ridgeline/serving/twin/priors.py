"""What kernels, hosts and schedulers reach before a site has said otherwise.

Calibration multiplies these through `Factors`; docs/twin.md says where each is used.
"""

from __future__ import annotations

# Share of the peak that kernels reach at full size.
DENSE_COMPUTE = {
    "bf16": 0.64,
    "fp16": 0.64,
    "fp32": 0.8,
    "fp8": 0.50,
    "int8": 0.5,
    "int4": 0.5,
    "fp4": 0.45,
    "mxfp4": 0.45,
}
# Grouped products over experts. In 16 bits Triton with default tiles is what most models get; FP8 has tuned kernels.
# The 16-bit figure is that of experts 1,408 wide (DeepSeek-V2-Lite in our H200 logs).
EXPERT_COMPUTE = {
    "bf16": 0.16,
    "fp16": 0.16,
    "fp32": 0.4,
    "fp8": 0.30,
    "int8": 0.25,
    "int4": 0.25,
    "fp4": 0.25,
    "mxfp4": 0.25,
}
# Wider 16-bit experts give every tile more columns and longer sums to work on: 0.45 w / (w + 2552) for w columns on a
# rank, which meets the measured 0.16 at 1,408 and nears two thirds of a dense product's share: that end is an estimate.
WIDE_EXPERT_COMPUTE, WIDE_EXPERT_HALF = {"bf16": 0.45, "fp16": 0.45}, 2552
# The same where a rank holds whole experts: wide products that DeepGEMM runs at 0.65 of an H800's peak by its own
# tables, less what ranks lose waiting for the one with the most popular experts.
WHOLE_EXPERT_COMPUTE = {"fp8": 0.45}
# Rows of one tile of such a product: each expert that is asked at all computes whole tiles. Kernels switch to the
# larger one when there are more tokens than experts.
EXPERT_TILE, SMALL_EXPERT_TILE = 64, 16
DENSE_MEMORY = 0.85
# Layers that keep a state: share of memory bandwidth while every request's state is read and written in a decode step,
# and of the tensor cores' rate while prompts are scanned in chunks.
STATE_MEMORY, STATE_COMPUTE = 0.60, 0.05
EXPERT_MEMORY = 0.80
ELEMENTWISE_MEMORY = 0.75
# Decode attention: share of memory bandwidth while reading KV, by back end, for (GQA, MLA); and of bf16 FLOP/s.
DECODE_MEMORY = {
    "fa3": (0.75, 0.60),
    "flashinfer": (0.70, 0.50),
    "flashmla": (0.60, 0.75),
    "cutlass_mla": (0.60, 0.65),
    "trtllm_mla": (0.75, 0.75),
    "triton": (0.50, 0.11),
}
DECODE_COMPUTE = 0.40
# Prefill attention: share of bf16 FLOP/s by back end.
PREFILL_COMPUTE = {
    "fa3": 0.55,
    "flashinfer": 0.45,
    "flashmla": 0.45,
    "cutlass_mla": 0.45,
    "trtllm_mla": 0.55,
    "triton": 0.25,
}
# Kernels of one layer: projections, norms, rope, attention and FFN; MLA and a mixture of experts add to them.
# Block-quantised weights want their activations quantised before every product.
# An indexer of sparse attention and a layer that keeps a state have kernels of their own.
LAYER_OPS, MLA_OPS, MOE_OPS, QUANTISE_OPS, INDEX_OPS, STATE_OPS = 11, 8, 12, 6, 6, 4
# A kernel's ramp and tail that no roofline shows, inside a captured graph. Small block-scaled FP8 products are further
# from their roofline. DeepSeek-R1 on eight H200 takes 12.5 ms for a batch of one by this, of which gaps are 9.8 and
# weights 1.4; no measured row at hand has a step so small.
OP_GAP_S, SCALED_OP_GAP_S = 2.8e-6, 4.2e-6
# Python, dispatch and launch of one such operation without a graph: 80 to 100 us in our H200
# logs and half of that on faster hosts.
HOST_OP_S = 65e-6
# Scheduling, sampling and detokenising of one iteration, and of each request in it; overlapped with the GPU.
HOST_STEP_S = 2.0e-3
HOST_REQUEST_S = 6e-6
# Attention-DP ranks agree on every batch through the CPUs, and each waits for the slowest scheduler; nothing hides it.
# Published decode steps of 16 to 72 ranks on two to nine nodes all take about 20 ms more than their kernels and
# transfers, whatever the batch. Inside one node it is lost in a step's own host time.
AGREE_S = 18e-3
# Passes over the logits by softmax, top-p and sampling, in float32.
SAMPLING_PASSES = 6
# Reads and writes of hidden-wide vectors per layer: norms, rope, residuals, quantisation, gate activation.
ELEMENTWISE_PASSES = 16
# Expert ranks never get equal work: the fullest of them makes the others wait.
EXPERT_IMBALANCE = 1.15
# Stages of a pipeline wait when neighbours differ; SGLang runs PP without overlapped scheduling.
PIPELINE_BUBBLE = 1.05

# SGLang's share of the remaining answer that it keeps free for each running request: where it starts, where it ends,
# and over how many decode steps it decays. --schedule-conservativeness multiplies the start.
NEW_TOKEN_SHARE, FINAL_SHARE_OF_START, DECAY_STEPS = 0.7, 0.14, 600
