"""What kind of step a range says it is."""

import pytest

from advisor.knowledge.framework_ranges import BY_FRAMEWORK
from advisor.knowledge.server_marks import phase, server_step


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
        ("step[SPLIT_PREFILL bs=4]", "split_prefill"),
        ("step[IDLE]", "idle"),
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
