"""The fifteen questions, where an answer is easily more than what was seen."""

import msgspec

from advisor.engine.checklist import checklist
from advisor.engine.rule import built_in
from advisor.engine.run import run
from tests.rules.test_rules import queued, repeat, wait_each_step

GEMM = "nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNN"


def answers(trace):
    return {answer.id: answer for answer in run(trace.timeline(), built_in().values()).checklist}


def test_a_program_without_products_is_not_praised_for_its_batch():
    batch = answers(queued(lambda trace, host, gpu: trace.launch(host + 1, gpu, gpu + 110, "own_kernel", grid_blocks=132)))["batch-size"]
    assert batch.answer == "not recorded" and "No GEMM ran" in batch.detail


def product(trace, host, gpu, dur):
    shapes = [[4096, 256], [256, 256]]
    trace.op("aten::mm", host, 18, shapes).launch(host + 10, gpu, gpu + dur, GEMM, grid_blocks=132)


def test_where_the_device_waits_for_launches_more_samples_cost_little():
    assert answers(queued(lambda trace, host, gpu: product(trace, host, gpu, 110)))["batch-size"].answer == "yes"

    def body(trace, at):
        for k in range(5):
            product(trace, at + 40 * k, at + 40 * k + 13, 10)

    waits = answers(repeat(200, body))["batch-size"]
    assert waits.answer == "no" and "little longer" in waits.detail


def test_waits_that_were_found_are_told_by_what_they_cost():
    found = answers(repeat(100, wait_each_step))["synchronisation"]
    # The kernel's 60 of 100 µs are left, and what it takes to launch it.
    assert found.answer == "yes" and found.detail == "Host waits that can be removed cost 39% of the step."


def test_the_bottleneck_is_what_holds_most():
    report = run(repeat(100, wait_each_step).timeline(), built_in().values())
    (time,) = report.time
    waits = msgspec.structs.replace(time, idle=msgspec.structs.replace(time.idle, data_loading=0.1 * time.window_us))
    for bottleneck, answer, told in (("data-bound", "yes", "10% of the time."), ("sync-bound", "no", "10% of the time: more time goes elsewhere.")):
        headline = msgspec.structs.replace(report.headline, bottleneck=bottleneck)
        loading = next(a for a in checklist(msgspec.structs.replace(report, time=(waits,), headline=headline)) if a.id == "data-loading")
        assert (loading.answer, loading.good) == (answer, False) and loading.detail.endswith(told)


def test_a_device_that_hardly_works_says_nothing_of_its_batch():
    """A product of 100 µs a step; the host works 3 ms for itself before each."""

    def body(trace, at):
        trace.python("train.py(30): step", at, 3_100).python("targets.py(8): build", at + 1, 2_990)
        product(trace, at + 3_000, at + 3_020, 100)

    batch = answers(repeat(3_200, body))["batch-size"]
    assert (batch.answer, batch.good) == ("no", None) and batch.detail.startswith("The GPU works 3.1% of the step")


def test_no_win_is_certain_in_what_was_judged_in_part():
    report = run(queued(lambda trace, host, gpu: trace.launch(host + 1, gpu, gpu + 110, "own_kernel")).timeline(), built_in().values())
    wins = {answer.id: answer for answer in report.checklist}["easy-wins"]
    assert report.headline.judged == "partly" and not [f for f in report.findings if f.loud]
    assert (wins.answer, wins.good) == ("no", None) and report.headline.judged_why in wins.detail


def test_waits_of_which_none_was_found_to_be_needless_are_no_good_news():
    report = run(repeat(100, wait_each_step).timeline(), [built_in()["precision"]])
    (time,) = report.time
    held = msgspec.structs.replace(time, idle=msgspec.structs.replace(time.idle, sync=0.2 * time.window_us))
    heard = msgspec.structs.replace(report.clear[0], rule="sync-stall")
    clear = msgspec.structs.replace(report, time=(held,), findings=(), clear=(heard,))
    waits = next(a for a in checklist(clear) if a.id == "synchronisation")
    assert (waits.answer, waits.good) == ("no", None) and waits.detail.endswith("none that can be removed was found.")


def test_an_engine_of_tensorrt_is_compiled():
    def body(trace, host, gpu):
        trace.launch(host + 1, gpu, gpu + 60, "sm80_xmma_gemm_f16f16_f16f16_f16_tn_n_tilesize32x32x64_stage6_warpsize2x2x1_tensor16x8x16_execute_kernel_trt")
        trace.launch(host + 2, gpu + 60, gpu + 110, "own_kernel")

    compiled = answers(queued(body))["compiled"]
    assert (compiled.answer, compiled.detail) == ("yes", "50% of the kernels belong to TensorRT engines.")


def of_products(found, **headline):
    """The answers where only products ran, with that rule's finding and that headline."""
    report = run(queued(lambda trace, host, gpu: product(trace, host, gpu, 110)).timeline(), [built_in()["unfused-elementwise"]])
    waits = run(repeat(100, wait_each_step).timeline(), [built_in()["sync-stall"]]).findings[0]
    findings = tuple(msgspec.structs.replace(waits, rule=rule) for rule in found)
    made = msgspec.structs.replace(report, findings=findings, clear=(), headline=msgspec.structs.replace(report.headline, **headline))
    return {answer.id: answer for answer in checklist(made)}


def test_what_tensor_cores_do_is_yes_though_a_lower_precision_would_gain():
    for name in ("tensor-cores", "mixed-precision"):
        for found, good in (((), True), (("precision",), False)):
            answer = of_products(found)[name]
            assert (answer.answer, answer.good) == ("yes", good) and ("lower precision" in answer.detail) != good


def test_kernels_are_memory_bound_where_the_headline_says_so():
    for bottleneck, yes in (("memory-bound", "yes"), ("compute-bound", "no"), ("gpu-bound", None)):
        answer = of_products((), bottleneck=bottleneck)["memory-bound"]
        by_intensity = "yes" if answer.figure >= 0.5 else "no"
        assert answer.answer == (yes or by_intensity) and ("of all kernel time" in answer.detail) == (answer.answer != by_intensity)


def test_unneeded_copies_are_told_by_their_kind_and_cost():
    assert of_products(())["copies"].answer == "no"
    for rule, said in (("memcpy", "Copies that can be removed or sped up cost"), ("dtype-casts", "Dtype casts that can be removed")):
        copies = of_products((rule,))["copies"]
        assert copies.answer == "yes" and said in copies.detail


def test_what_every_fix_gains_is_not_said_of_the_easy_wins_alone():
    wins = {answer.id: answer for answer in run(repeat(100, wait_each_step).timeline(), built_in().values()).checklist}["easy-wins"]
    assert "All fixes together save" in wins.detail
