"""Each rule about memory on histories of a few lines, and all of them on what was recorded and measured."""

import json

import pytest

from advisor.engine.rule import built_in
from advisor.engine.run import run
from advisor.recordings.recording import Recording
from tests.analysed import analysed
from tests.memory_build import MIB, Memory, at, backward, frame, optimizer, parameter, trained
from tests.paths import ROOT

GIB = 1 << 30


def report(memory, *rules, **settings):
    chosen = [built_in()[rule] for rule in rules] if rules else built_in().values()
    made = run(Recording("memory", "snapshot.pickle", (memory.snapshot(**settings),)), chosen)
    assert not made.failed, made.failed
    return made


def one(memory, rule):
    (finding,) = report(memory, rule).findings
    return finding


def clear(memory, rule):
    made = report(memory, rule)
    assert not made.findings and len(made.clear) == 1, (made.findings, made.skipped)
    return made.clear[0].why


def test_checkpointing_frees_all_but_what_layers_pass_on():
    finding = one(trained(layers=8, activation=1024), "memory-activations")
    # Before: 8 × 64 of parameters, 8 × (1024 + 128) of activations, a gradient and what is passed on. After: one layer's 1024 at a time.
    assert finding.saving.expected / MIB == pytest.approx(7 * 1024, rel=0.02)
    assert finding.severity == "high" and finding.saving.unit == "bytes" and finding.saving.of == "allocated"
    assert finding.evidence[0].source.file == "train.py"


def test_the_batch_that_the_same_memory_then_holds_is_said():
    # 8 × (1024 + 128) and a gradient grow with the batch; 7 × 1024 of that is freed.
    finding = one(trained(layers=8, activation=1024), "memory-activations")
    times = float(finding.fix.steps[-1].split("about ")[1].split(" times")[0])
    assert times == pytest.approx(9216 / (9216 - 7168), rel=0.1)


def test_what_frees_too_little_to_be_worth_computing_twice_is_low():
    assert one(trained(layers=8, activation=128), "memory-activations").severity == "low"
    assert "no backward pass" in clear(_served(), "memory-activations")


def _served(steps=6):
    m = Memory()
    for _ in range(steps):
        m.free(m.alloc(300, at(3, "addmm")), m.alloc(300, at(4, "relu")))
    return m


def test_activations_kept_step_after_step_are_a_leak():
    finding = one(trained(steps=5, keep=True), "memory-leak")
    # Each step leaves 4 × 576; without, one step's remain.
    assert "2.42 GB" in finding.summary and "step 1 of 5" in finding.summary
    assert finding.saving.expected / MIB == pytest.approx(4 * 2304, rel=0.02)
    clear(trained(steps=5), "memory-leak")


def _marked(kept, dropped):
    m = Memory()
    for _ in range(6):
        m.alloc(300, kept)
        m.free(m.alloc(500, dropped))
        m.mark("Optimizer.step#SGD.step")
    return m


PLACED = ("memory-activations", "memory-gradients", "memory-growth", "memory-optimizer-state", "memory-transient")


def test_without_stacks_growth_is_said_and_nothing_is_called_a_leak_or_clear():
    for dropped, unjudged in (((), PLACED), (at(3, "addmm"), ())):
        made = report(_marked((), dropped), "memory-leak", *PLACED)
        skipped = {s.rule: s.why for s in made.skipped}
        assert not made.findings and set(skipped) == {"memory-leak", *unjudged}
        assert "each step keeps 315 MB without a recorded stack" in skipped["memory-leak"]
        assert "leaked" not in {row.category for row in made.memory.at_peak}
    one(_marked(at(2, "addmm"), ()), "memory-leak")


def test_a_queue_of_bounded_length_is_no_leak():
    m = Memory()
    queue = []
    for _ in range(12):
        queue.append(m.alloc(100, at(3, "addmm")))
        m.free(m.alloc(10, at(4, "relu")))
        if len(queue) > 5:
            m.free(queue.pop(0))
    clear(m, "memory-leak")


def test_two_steps_show_no_growth():
    made = report(trained(steps=2, keep=True), "memory-leak")
    assert "growth needs 3" in made.skipped[0].why


def test_gradients_that_stay_beside_the_activations():
    finding = one(trained(zeros=True), "memory-gradients")
    assert finding.saving.expected / MIB == pytest.approx(192, abs=64)
    clear(trained(), "memory-gradients")


def test_gradients_that_are_accumulated_are_as_they_should_be():
    m = trained(zeros=True)
    m.notes.clear()
    clear(m, "memory-gradients")


def _cache(copied):
    m = Memory()
    cache = m.alloc(1000 if copied else 1100, at(3, "zeros"))
    for token in range(10):
        if copied:
            grown = m.alloc(1000 + 10 * (token + 1), at(5, "cat"))
            m.free(cache)
            cache = grown
        m.free(m.alloc(4, at(6, "addmm")))
    return m


def test_a_buffer_that_grows_by_copies_needs_twice_its_size():
    finding = one(_cache(copied=True), "memory-growth")
    # The last copy holds 1,090 and 1,100; allocated once it is 1,100.
    assert finding.saving.expected / MIB == pytest.approx(1090, abs=10)
    clear(_cache(copied=False), "memory-growth")


def test_batches_that_get_longer_are_no_growing_buffer():
    m = Memory()
    for length in range(10):
        m.free(m.alloc(1000 + 10 * length, at(5, "addmm")))
    clear(m, "memory-growth")


def _adam(temporaries, of=optimizer):
    m = Memory()
    parameters = 8
    for _ in range(parameters):
        m.alloc(256, parameter())
    for first in (True, False, False):
        activation = m.alloc(16, at(5, "addmm"))
        made = [m.alloc(256, backward()) for _ in range(parameters)]
        m.free(activation)
        for _ in range(2 * parameters if first else 0):
            m.alloc(256, optimizer())
        m.free(*[m.alloc(256, of("_foreach_sqrt")) for _ in range(parameters if temporaries else 0)])
        m.free(*made)
    return m


def test_a_fused_update_has_no_temporaries():
    finding = one(_adam(temporaries=True), "memory-optimizer-state")
    # Without, the peak is at the end of the backward pass, beside 16 MiB of activations.
    assert finding.saving.expected == (8 * 256 - 16) * MIB and "fused" in finding.fix.title.lower()


def test_an_optimizer_of_ones_own_is_not_told_to_pass_what_it_does_not_take():
    wrapper = [frame("wrapper", "/venv/lib/python3.11/site-packages/torch/optim/optimizer.py", 493), *at(9)]
    own, library = frame("step", "/home/me/model/optimizer.py", 78), frame("_multi_tensor_adam", "/venv/lib/python3.11/site-packages/torch/optim/adam.py", 5)
    titles = [
        one(_adam(temporaries=True, of=lambda _, innermost=innermost: [innermost, *wrapper]), "memory-optimizer-state").fix.title
        for innermost in (own, library)
    ]
    assert titles == ["Make the update without temporaries", "Use the fused update"]


def test_adams_state_alone_is_as_it_should_be():
    assert one(_adam(temporaries=False), "memory-optimizer-state").severity == "low"


def _logits(at_once):
    m = Memory()
    m.alloc(64, parameter())
    for _ in range(3):
        kept = [m.alloc(100, at(5, "addmm")) for _ in range(10)]
        for _ in range(1 if at_once else 16):
            size = 4000 if at_once else 250
            parts = [m.alloc(size, at(7, "linear")), m.alloc(size, at(8, "_log_softmax"))]
            m.free(*parts)
        gradient = m.alloc(64, backward())
        m.free(*kept, gradient)
    return m


def test_logits_at_once_are_a_moment():
    finding = one(_logits(at_once=True), "memory-transient")
    assert finding.severity == "high" and "loss" in finding.summary
    assert finding.saving.expected / MIB == pytest.approx(7000, rel=0.05)
    clear(_logits(at_once=False), "memory-transient")


def by_hand(op, line, mib, m):
    """An allocation in a softmax that the program writes out and calls where the products are, or there where no line is given."""
    called = at(12, "" if line else op, "attend")
    return m.alloc(mib, [*at(line, op, "softmax")[:2], *called] if line else called)


def attended(product="bmm", quotient="div", mib=512):
    m = Memory()
    m.older(64)
    for _ in range(3):
        scores = by_hand(product, 0, mib, m)
        less = by_hand("sub", 7, mib, m)
        exponential = by_hand("exp", 8, mib, m)
        m.free(scores, less)
        m.free(by_hand(quotient, 9, mib, m), exponential)
    return m


def test_attention_whose_softmax_is_written_out_forms_its_scores():
    finding = one(attended(), "memory-transient")
    assert finding.title == "Attention forms its N × N scores"
    assert finding.saving.expected / MIB == pytest.approx(3 * 512, rel=0.01)


@pytest.mark.parametrize(
    "memory",
    [
        attended(product="addmm"),  # of logits, not of scores
        attended(quotient="mul"),  # no softmax
        attended(mib=2),  # of something small
    ],
)
def test_other_exponentials_are_no_scores(memory):
    assert all("scores" not in finding.title for finding in report(memory, "memory-transient").findings)


def test_what_every_layer_holds_for_a_while_is_no_moment():
    m = Memory()
    for _ in range(3):
        for _ in range(8):
            m.free(m.alloc(3000, at(5, "addmm")), m.alloc(3000, at(6, "gelu")))
    clear(m, "memory-transient")


def _fragmented():
    m = Memory()
    for step in range(20):
        size = 1000 + 100 * step
        for action in ("segment_alloc", "alloc", "free_requested", "free_completed"):
            m.event(action, m.next, size * MIB, at(5, "addmm"))
        m.segments[m.next] = m._segment(m.next, size * MIB, 0, {"address": m.next, "size": size * MIB, "requested_size": 0, "state": "inactive", "frames": []})
        m.next += 1 << 34
    return m


def test_segments_that_nothing_fits_are_found_and_expandable_ones_predicted():
    finding = one(_fragmented(), "memory-fragmentation")
    # 1000 + 1100 + … + 2900 reserved; an expandable segment holds the largest, in pages of 20.
    assert finding.saving.of == "reserved" and finding.saving.expected == (sum(range(1000, 3000, 100)) - 2900) * MIB
    made = report(_fragmented(), "memory-fragmentation", expandable_segments=True)
    assert not made.findings


def test_what_is_free_in_a_snapshot_without_events_is_not_judged():
    m = Memory()
    m.older(1000)
    for _ in range(4):
        m.segments[m.next] = m._segment(m.next, 1000 * MIB, 0, {"address": m.next, "size": 1000 * MIB, "requested_size": 0, "state": "inactive", "frames": []})
        m.next += 1 << 34
    made = report(m, "memory-fragmentation")
    assert not made.findings and made.skipped[0].rule == "memory-fragmentation" and "earlier peak" in made.skipped[0].why
    assert made.headline.bottleneck == "nothing found" and made.headline.judged == "partly"


def test_what_was_free_before_the_first_event_is_not_judged():
    m = Memory()
    m.older(1000)
    for _ in range(4):
        m.segments[m.next] = m._segment(m.next, 1000 * MIB, 0, {"address": m.next, "size": 1000 * MIB, "requested_size": 0, "state": "inactive", "frames": []})
        m.next += 1 << 34
    m.event("free_completed", m.next - (1 << 34), 500 * MIB)  # all that the history saw; four segments of 1000 MiB are free
    made = report(m, "memory-fragmentation")
    assert not made.findings and "4.19 GB of 5.24 GB were free before the first event" in made.skipped[0].why


@pytest.mark.parametrize(("older", "judged"), [(450, "yes"), (550, "partly")])
def test_a_peak_that_is_mostly_of_no_known_kind_is_judged_in_part(older, judged):
    m = Memory()
    m.older(older)
    m.alloc(1000 - older, at(5, "addmm"))
    made = report(m, "memory-fragmentation").headline
    assert (made.bottleneck, made.judged) == ("nothing found", judged)
    assert made.judged_why.startswith("55% of the peak is older") == (judged == "partly")


def test_segments_given_back_and_asked_for_again():
    m = Memory()
    for _ in range(6):
        m.free(m.alloc(500, at(5, "addmm")))
    finding = one(m, "memory-churn")
    assert (finding.saving.unit, finding.saving.per) == ("us", "recording") and finding.severity == "high"


def test_rules_about_timelines_say_nothing_of_memory():
    made = report(trained())
    said = {x.rule for part in (made.findings, made.clear, made.skipped) for x in part}
    assert said == {"memory-activations", "memory-leak", "memory-optimizer-state", "memory-fragmentation", "memory-growth",
                    "memory-transient", "memory-gradients", "memory-churn"}  # fmt: skip


CASES = json.loads((ROOT / "samples" / "memory" / "manifest.json").read_text())["cases"]
LOUD = ("high", "medium")


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c["rule"] and "slow" in c])
def test_recorded_faults_are_found_first_with_what_their_fix_was_measured_to_free(name):
    case = CASES[name]
    made = analysed(ROOT / "samples" / "memory" / case["slow"]["file"])
    found = [f for f in made.findings if f.severity in LOUD]
    if name == "adam_state":
        assert not found and made.findings[0].rule == "memory-optimizer-state"  # as Adam's state should be: low
        return
    assert found and found[0].rule in case["rule"], [f.rule for f in found]
    if found[0].saving.unit == "bytes" and "fixed" in case:
        key = f"peak_{case['bytes']}"
        measured = 1 - case["fixed"][key] / case["slow"][key]
        assert found[0].saving.expected / case["slow"][key] == pytest.approx(measured, abs=0.1)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if "fixed" in c])
def test_repaired_programs_and_controls_are_quiet(name):
    case = CASES[name]
    made = analysed(ROOT / "samples" / "memory" / case["fixed"]["file"])
    loud = [f.rule for f in made.findings if f.severity in LOUD]
    assert not (set(loud) & set(case["rule"])) if case["rule"] else not loud, loud
    # What a history that began late finds there has no stack; sizes tell some of it.
    assert made.memory.named_share >= (0.8 if name == "trained_well_late" else 0.99)
    assert sum(row.bytes for row in made.memory.at_peak) == made.memory.peak_allocated_bytes


def test_a_request_that_failed_is_what_stands_out():
    m = _served()
    held = m.alloc(700, at(5, "mm"))
    m.event("oom", 0, 900 * MIB, at(6, "mm"))
    head = report(m).headline
    assert head.bottleneck == "out of memory"
    assert head.summary.startswith("An allocation of 944 MB ran out of memory, when 734 MB were allocated and 734 MB reserved. The peak is 734 MB")
    m.event("oom", 0, 800 * MIB, at(6, "mm"))
    m.free(held)
    assert report(m).headline.summary.startswith("2 allocations ran out of memory, the largest of 944 MB, when 734 MB")
    assert report(trained()).headline.bottleneck != "out of memory"


def test_what_frees_much_at_a_price_is_not_passed_over_in_the_headline():
    made = analysed(ROOT / "samples" / "memory" / "emptied_cache.fixed.pickle.gz")
    assert [f.severity for f in made.findings] == ["low"] and made.share(made.findings[0]) > 0.2
    assert made.headline.bottleneck == "no fault found" and "Checkpoint each layer: 403 MB less, which hardly pays." in made.headline.summary
