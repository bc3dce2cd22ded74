"""Names of SGLang's own launch flags, so that one we lack is refused as such and by name.

Facts about a command line, not a promise: the list holds flags that people have in their scripts.
"""

from __future__ import annotations

_NAMES = """
allow-auto-truncate attn-cp-size base-gpu-id bucket-e2e-request-latency bucket-inter-token-latency
bucket-time-to-first-token collect-tokens-histogram completion-template
constrained-json-whitespace-pattern cpu-offload-gb crash-dump-folder cuda-graph-bs
cuda-graph-max-bs custom-sigquit-handler custom-weight-loader data-parallel-size
debug-tensor-dump-inject debug-tensor-dump-input-file debug-tensor-dump-output-folder
decode-attention-backend decrypted-config-file deepep-mode default-priority-value
delete-ckpt-after-loading device-id disable-chunked-prefix-cache disable-cuda-graph
disable-cuda-graph-padding disable-custom-all-reduce disable-fast-image-processor
disable-flashinfer-autotune disable-hybrid-swa-memory disable-outlines-disk-cache
disable-overlap-schedule disable-piecewise-cuda-graph disable-shared-experts-fusion
disaggregation-bootstrap-port disaggregation-ib-device disaggregation-mode
disaggregation-transfer-backend dllm-algorithm download-dir dp-size elastic-ep-backend
enable-cache-report enable-custom-logit-processor enable-deterministic-inference
enable-dp-attention enable-dp-lm-head enable-ep-moe enable-eplb enable-expert-distribution-metrics
enable-flashinfer-allreduce-fusion enable-fp32-lm-head enable-hierarchical-cache
enable-layerwise-nvtx-marker enable-lmcache enable-lora enable-memory-saver
enable-metrics-for-all-schedulers enable-mscclpp enable-multimodal enable-nan-detection
enable-nccl-nvls enable-p2p-check enable-pdmux enable-priority-scheduling
enable-request-time-stats-logging enable-return-hidden-states enable-return-routed-experts
enable-single-batch-overlap enable-symm-mem enable-tokenizer-batch-encode enable-torch-compile
enable-trace enable-two-batch-overlap enable-weights-cpu-backup ep-dispatch-algorithm
ep-num-redundant-experts ep-size eplb-algorithm expert-parallel-size export-metrics-to-file
export-metrics-to-file-dir file-storage-path flashinfer-mla-disable-ragged
flashinfer-mxfp4-moe-precision forward-hooks fp8-gemm-backend gc-warning-threshold-secs
gpu-id-step grpc-mode hicache-io-backend hicache-mem-layout hicache-ratio
hicache-size hicache-storage-backend hicache-storage-prefetch-policy hicache-write-policy
hybrid-kvcache-ratio init-expert-location is-embedding json-model-override-args
keep-mm-feature-on-device kv-cache-dtype kv-events-config linear-attn-backend
linear-attn-decode-backend linear-attn-prefill-backend load-balance-method log-level-http
log-requests log-requests-format log-requests-level log-requests-target lora-backend lora-paths
lora-target-modules mamba-backend mamba-scheduler-strategy max-loaded-loras max-lora-rank
max-loras-per-batch mm-attention-backend mm-max-concurrent-calls mm-process-config model-impl
model-loader-extra-config modelopt-quant moe-a2a-backend moe-data-parallel-size moe-dense-tp-size
moe-runner-backend multi-item-scoring-delimiter nccl-port nsa-decode-backend nsa-prefill-backend
num-continuous-decode-steps num-reserved-decode-tokens numa-node offload-group-size offload-mode
offload-num-in-group offload-prefetch-step otlp-traces-endpoint piecewise-cuda-graph-compiler
piecewise-cuda-graph-max-tokens preferred-sampling-params prefill-attention-backend
prefill-delayer-max-delay-passes prefill-max-requests prefill-round-robin-balance
priority-scheduling-preemption-threshold quantization quantization-param-path
radix-eviction-policy remote-instance-weight-loader-backend revision rl-on-policy-target
sampling-defaults schedule-conservativeness schedule-low-priority-values-first
scheduler-recv-interval show-time-cost skip-tokenizer-init sleep-on-idle sm-group-num
soft-watchdog-timeout speculative-accept-threshold-acc speculative-accept-threshold-single
speculative-algorithm speculative-attention-mode speculative-draft-model-path
speculative-eagle-topk speculative-num-draft-tokens speculative-num-steps speculative-token-map
ssl-ca-certs ssl-certfile ssl-keyfile ssl-keyfile-password stream-output strict-ports
swa-full-tokens-ratio tbo-token-distribution-threshold tokenizer-metrics-allowed-custom-labels
tokenizer-metrics-custom-labels-header tokenizer-mode tokenizer-worker-num tool-server
torch-compile-max-bs torchao-config trace-level triton-attention-num-kv-splits
triton-attention-reduce-in-fp32 triton-attention-split-tile-size trust-remote-code
uvicorn-access-log-exclude-prefixes warmups weight-loader-disable-mmap weight-version
"""

SGLANG_FLAGS: frozenset[str] = frozenset(f"--{name}" for name in _NAMES.split())
