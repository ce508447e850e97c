"""What benchmarks and counters say of a server is read, and held against the traced steps."""

import json

import pytest

from advisor.engine.run import analyze
from advisor.engine.served_load import decoding, judged
from advisor.errors import TraceError, UsageError
from advisor.recordings.recording import Recording, with_load
from advisor.recordings.served_load import LoadBeside
from advisor.report.serving import Latency, ServingLoad
from advisor.reports import formats
from advisor.sources import read
from advisor.sources.served_load import read_load
from advisor.views.trace.serving import Serving
from tests.paths import ROOT
from tests.views.trace.test_serving import DECODE, PREFILL, served

BENCH = {
    "backend": "vllm", "max_concurrency": 16, "duration": 20.0, "completed": 100, "total_output_tokens": 16000, "request_throughput": 5.0, "output_throughput": 800.0,
    "mean_ttft_ms": 120.0, "median_ttft_ms": 110.0, "p99_ttft_ms": 250.0, "mean_tpot_ms": 20.0, "median_tpot_ms": 18.5, "p99_tpot_ms": 25.0,
}  # fmt: skip
COUNTERS = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 9.0
vllm:num_requests_running{engine="1",model_name="m"} 7.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 40.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.2",model_name="m"} 80.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 80.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 80.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 8.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 1000.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 20.0
vllm:spec_decode_num_drafts_total{engine="0"} 100.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 150.0
process_cpu_seconds_total NaN
"""


def written(tmp_path, text):
    path = tmp_path / "measured"
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return str(path)


def test_results_of_a_benchmark(tmp_path):
    load = read_load(written(tmp_path, BENCH)).load
    assert (load.source, load.requests_per_s, load.output_tokens_per_s) == ("vLLM bench serve", 5, 800)
    assert load.ttft == Latency(120, 110, 250) and load.tpot.usual_ms == 18.5
    # 100 requests of 0.12 s and 159 tokens of 20 ms each, in 20 s.
    assert load.running == pytest.approx((100 * 0.12 + 15900 * 0.02) / 20)


def test_of_several_results_the_last_with_the_version_that_it_says(tmp_path):
    lines = [json.dumps({**BENCH, "concurrency": at, "accept_length": 2.5, "server_info": {"version": "0.5.23"}}) for at in (3.0, 30.0)]
    beside = read_load(written(tmp_path, "\n".join(lines) + "\n"))
    assert (beside.load.source, beside.load.running, beside.load.accepted_tokens, beside.version) == ("SGLang bench_serving", 30, 2.5, "0.5.23")


def test_counters_of_several_engines_together(tmp_path):
    load = read_load(written(tmp_path, COUNTERS)).load
    assert (load.source, load.running, load.waiting, load.cache_used, load.accepted_tokens) == ("Prometheus", 16, 2, 0.25, 2.5)
    assert load.ttft.mean_ms == 100 and load.ttft.p99_ms == pytest.approx(198) and load.ttft.median_ms is None, (
        "all that is known is that half lie below 100 ms"
    )
    assert load.tpot == Latency(20.0, None, None)


def test_names_of_an_older_version_and_of_the_other_server(tmp_path):
    text = 'sglang:num_running_reqs{tp_rank="0"} 12\nsglang:num_queue_reqs 3\nsglang:gen_throughput 500.5\nsglang:spec_accept_length 3.1'
    load = read_load(written(tmp_path, text)).load
    assert (load.running, load.waiting, load.output_tokens_per_s, load.accepted_tokens) == (12, 3, 500.5, 3.1)


@pytest.mark.parametrize(
    "text", ["", "{", "[1, 2]", '{"a": 1}', "up 1\nprocess_open_fds 3", "\0\1\2", '{"mean_ttft_ms": 1e999}' * 3, "vllm:num_requests_running nan"]
)
def test_what_is_none_of_these_is_refused(tmp_path, text):
    with pytest.raises(TraceError):
        read_load(written(tmp_path, text))
    with pytest.raises(TraceError, match="cannot be opened"):
        read_load(str(tmp_path / "none"))


def of(*requests, **load):
    """The verdict on steps of 200 us that decode so many requests each."""
    return judged(ServingLoad(source="Prometheus", **load), decoding(served(*[(DECODE.format(n), 8, 2) for n in requests]).get(Serving)))


@pytest.mark.parametrize(
    ("requests", "load", "steady", "why"),
    [
        ((16,) * 6, {"running": 15.0}, "yes", "16 requests"),
        ((16,) * 6, {"running": 40.0}, "no", "40.0 ran"),
        ((16,) * 6, {"running": 15.0, "tpot": Latency(0.25)}, "yes", ""),
        ((16,) * 6, {"tpot": Latency(2.0)}, "no", "a token took 2.00 ms"),
        ((16,) * 6, {"tpot": Latency(2.0), "running": 16.0, "accepted_tokens": 3.0}, "yes", ""),
        ((2, 4, 8, 16, 24, 32), {"running": 16.0}, "no", "change from 3 to 28"),
        ((16,) * 6, {"waiting": 1.0}, "unknown", "neither"),
    ],
)  # fmt: skip
def test_whether_the_traced_steps_are_of_the_state_that_was_measured(requests, load, steady, why):
    found = of(*requests, **load)
    assert found.steady == steady and why in found.why


def test_steps_without_a_decode_say_nothing():
    load = judged(ServingLoad(source="Prometheus", running=1.0), decoding(served((PREFILL, 0, 6), (PREFILL, 0, 6)).get(Serving)))
    assert load.steady == "unknown" and "decodes" in load.why


def test_what_a_verified_step_yields_is_measured_and_not_guessed():
    trace = served(*[("step[TARGET_VERIFY bs=4]", 8, 2)] * 4)
    recording = Recording("trace", "t", (trace.timeline(),))
    for accepted, rate, words in ((None, None, "is not in a trace"), (2.5, 4 * 2.5 / 200e-6, "2.50 tokens a verified step")):
        given = with_load(recording, LoadBeside(ServingLoad(source="Prometheus", running=4.0, accepted_tokens=accepted)))
        made = analyze(given)
        assert made.report.serving.phases[0].tokens_per_s == (pytest.approx(rate) if rate else None)
        assert words in " ".join(formats()["text"].render(made).split())


def test_every_format_says_what_was_measured(tmp_path):
    trace = read(ROOT / "samples" / "serving" / "eager_decode.slow.trace.zst")
    made = analyze(with_load(trace, read_load(written(tmp_path, BENCH))))
    assert made.report.serving.load.steady == "yes"
    assert next(h for h in made.report.health if h.check == "serving-load").status == "ok"
    for name in ("text", "markdown", "html"):
        assert "TTFT 110 ms (p99 250 ms)" in " ".join(formats()[name].render(made).split()), name
    assert json.loads(formats()["json"].render(made))["serving"]["load"]["tpot"]["median_ms"] == 18.5
    with pytest.raises(UsageError):
        with_load(Recording("memory", "j", ()), read_load(written(tmp_path, BENCH)))
