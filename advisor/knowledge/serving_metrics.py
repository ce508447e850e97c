"""Names of inference servers' metrics in Prometheus's text format. Several names of the same metric are of several versions, newest first."""

from __future__ import annotations

RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs")
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs")
CACHE_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
"""A share from 0 to 1, whatever its name says."""
OUTPUT_TOKENS_PER_S = ("sglang:gen_throughput",)
ACCEPTED = ("sglang:spec_accept_length",)
"""Tokens that a step of speculative decoding yields, on average."""
ACCEPTED_TOKENS, DRAFTS = ("vllm:spec_decode_num_accepted_tokens_total",), ("vllm:spec_decode_num_drafts_total",)

TTFT = ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds")
TPOT = (
    "vllm:request_time_per_output_token_seconds", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds",
    "sglang:request_time_per_output_token_seconds", "sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds",
)  # fmt: skip
QUEUE = ("vllm:request_queue_time_seconds", "sglang:queue_time_seconds")
"""Histograms, in seconds."""
