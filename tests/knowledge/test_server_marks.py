"""What kind of step a range says it is."""

import pytest

from advisor.knowledge.framework_ranges import BY_FRAMEWORK
from advisor.knowledge.server_marks import ServerMark, engine_of, phase, server_mark, server_step


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)", "decode"),
        ("execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)", "mixed"),
        ("execute_context_1(888_788544)_generation_0(0)", "prefill"),
        ("execute_new_0_cached_31", "decode"),
        ("step[DECODE bs=31]", "decode"),
        ("step[EXTEND bs=15 toks=15360]", "prefill"),
        ("step[TARGET_VERIFY bs=4]", "verify"),
        ("step[VERIFY bs=4]", "verify"),
        ("step[DRAFT bs=4]", "draft"),
        ("step[DRAFT_EXTEND_V2 bs=4 c_sq=16 c_sqsq=64 c_sqsk=1600 c_sk=400]", "draft"),
        ("step[DRAFT bs=2 toks=512 c_sq=512 c_sqsq=131072 c_sqsk=131072 c_sk=512 forward_id=3]", "draft"),
        ("step[SPLIT_PREFILL bs=4]", "split_prefill"),
        ("step[DLLM_EXTEND bs=4]", "dllm_extend"),
        ("step[IDLE]", "idle"),
        ("step[IDLE bs=0]", "idle"),
        ("execute_context_0(0)_generation_4(20)", "verify"),
        ("execute_context_2(1024)_generation_0(0)", "prefill"),
        ("[Executor] _forward_step 12: 2 ctx reqs, 0 gen reqs", "prefill"),
        ("[Executor] _forward_step 13: 0 ctx reqs, 0 ctx tokens, 32 gen reqs", "decode"),
        ("step [12/100]", ""),
        ("execute_context", ""),
        ("decode 3", ""),
    ],
)
def test_a_servers_name_says_the_kind_of_its_step(name, kind):
    assert server_step(name) == kind and phase(name) == (kind or phase(name))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("prefill", "prefill"), ("Decode step 12", "decode"), ("[decode] 3", "decode"), ("decoder_layer_3", ""), ("prefill+decode", ""), ("encode", "")],
)
def test_people_name_phases_by_a_word(name, kind):
    assert phase(name) == kind


@pytest.mark.parametrize("name", ["step [3/10]", "[train] step 3", "[Executor] _forward_step 3: 0 ctx reqs, 4 gen reqs", "step[DECODE bs=31]", "iteration[7]"])
def test_a_bracket_makes_no_range_a_frameworks(name):
    assert not BY_FRAMEWORK.search(name)


@pytest.mark.parametrize(
    "name",
    ["[0] GpuExecutable::ExecuteThunks", "ComputeSemaphoreAcquire [capacity=8, value=1]", "PjRtCApiCompiler::BufferFromHostBuffer(bf16[8,16])", "[range-a] 3"],
)
def test_xlas_runtime_and_ranges_that_were_renamed_are_frameworks(name):
    assert BY_FRAMEWORK.search(name)


def told(name):
    mark = server_mark(name)
    return mark.engine, mark.requests, mark.decodes, mark.query_tokens, mark.kv_tokens, mark.query_squares, mark.query_kv


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)", ("vLLM", 32, 32, 32, 32785, 32, 32785)),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
            ("vLLM", 46, 37, 8192, 42919, 7475822, 7705799),
        ),
        ("execute_31_context_0(sq0sk0)_generation_31(sq31sk70400)", ("vLLM", 31, 31, 31, 70400, -1, -1)),
        ("execute_context_1(888_788544)_generation_0(0)", ("vLLM", 1, 0, 888, -1, 788544, -1)),
        ("execute_context_1(4)_generation_2(2)", ("vLLM", 3, 2, 6, -1, -1, -1)),
        ("execute_new_1_cached_31", ("vLLM", 32, 31, -1, -1, -1, -1)),
        ("step[DECODE bs=31]", ("SGLang", 31, 31, 31, -1, -1, -1)),
        ("step[EXTEND bs=15 toks=15360]", ("SGLang", 15, 0, 15360, -1, -1, -1)),
        ("step[EXTEND bs=2 toks=96 c_sq=96 c_sqsq=5120 c_sqsk=9000 c_sk=200 forward_id=9]", ("SGLang", 2, 0, 96, 200, 5120, 9000)),
        ("step[VERIFY bs=4 g_sq=16 g_sqsq=64 g_sqsk=1600 g_sk=400 forward_id=12]", ("SGLang", 4, 4, 16, 400, 64, 1600)),
        ("execute_context_0(0)_generation_4(20)", ("vLLM", 4, 4, 20, -1, -1, -1)),
        ("step[DECODE bs=2 g_sq=2 g_sqsq=2 g_sqsk=80 g_sk=80 forward_id=7]", ("SGLang", 2, 2, 2, 80, 2, 80)),
        (
            "step[MIXED bs=3 c=1 g=2 c_sq=100 c_sk=100 c_sqsq=10000 c_sqsk=10000 g_sq=2 g_sk=200 g_sqsq=2 g_sqsk=200]",
            ("SGLang", 3, 2, 102, 300, 10002, 10200),
        ),
        ("[Executor] _forward_step 13: 2 ctx reqs, 100 ctx tokens, 32 gen reqs", ("TensorRT-LLM", 34, 32, 132, -1, -1, -1)),
        ("[Executor] _forward_step: 1 ctx reqs, 32 gen reqs", ("TensorRT-LLM", 33, 32, -1, -1, -1, -1)),
    ],
)
def test_a_mark_says_engine_requests_tokens_and_sums(name, says):
    assert told(name) == says


def test_what_is_padded_to_stands_in_marks_of_a_draft_model():
    assert server_mark("step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]") == ServerMark("SGLang", "draft", 3, padded_to=4)


@pytest.mark.parametrize(
    "name", ["step[DECODE bs=31", "step[DECODE bs=x]", "execute_context_1(abc)_generation_0(0)", "[Executor] step 1: 0 ctx reqs, 1 gen reqs"]
)
def test_what_only_looks_like_a_mark_is_none(name):
    assert server_mark(name) is None


def test_a_server_that_writes_anothers_marks_too_is_known_by_its_own():
    assert engine_of(["execute_context_0(0)_generation_31(31)", "step[DECODE bs=31]", "aten::mm"]) == "SGLang"
    assert engine_of(["decode", "aten::mm"]) == ""
