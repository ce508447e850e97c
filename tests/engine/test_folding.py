"""Which findings are symptoms of others: what each adds is told by the same mean over the host's time as what it gains."""

import msgspec
import numpy as np
import pytest

from advisor.engine.folding import folded
from advisor.engine.rule import Judged
from advisor.knowledge.structs import replace
from advisor.report.finding import Saving
from advisor.report.wording import aside
from advisor.views.replay.edits import Edits, WithDurations, WithoutHostTime
from advisor.views.replay.replay import Replay
from tests.build import Trace
from tests.engine.test_uncertainty import judged, launch_gap, loop

STEPS = 6


def two_kernels():
    """Two kernels of 30 µs a step of 100 µs, which the host likely binds, and the GPU if the host takes 0.4 of that."""
    trace = Trace()
    for s in range(STEPS):
        at = 100.0 * s
        trace.step(at, 99, s + 1)
        for k in range(2):
            trace.op("aten::mm", at + 49 * k, 48).launch(at + 49 * k + 8, at + 49 * k + 15, at + 49 * k + 45, "gemm", dur=4)
    replay = trace.get(Replay)
    host = [replay.recorded.edit(host_us=replay.recorded.host_us * of, call_us=replay.recorded.call_us * of) for of in (1.0, 0.4, 2.5)]
    return replace(replay, corrected=host[0], fastest=host[1], slowest=host[2])


def fix_of(replay, rule, kernels, confidence=0.9):
    edit = WithDurations(kernels, np.full(len(kernels), 22.0))
    saving = Saving(0.0, replay.expected_share(edit) * replay.step_us, replay.step_us, "simulated")
    found = launch_gap(judged(loop(gpu_us=8, python=0, recorder="unheard of")))
    return Judged(msgspec.structs.replace(found, rule=rule, saving=saving, severity="medium", confidence=confidence), Edits.exact(edit))


def test_fixes_of_different_kernels_are_no_symptoms_of_each_other():
    replay = two_kernels()
    every = np.arange(len(replay.recorded.op_row))
    first, second = every[::2], every[1::2]
    apart = folded(replay, [fix_of(replay, "precision", first), fix_of(replay, "memory-layout", second)])
    assert [f.finding.folded_into for f in apart] == ["", ""] and apart[0].finding.saving.expected_us > 2
    same = folded(replay, [fix_of(replay, "precision", first), fix_of(replay, "memory-layout", first)])
    assert [f.finding.folded_into for f in same] == ["", "precision"]
    assert replay.share(replay.corrected, same[0].edits.expected) == pytest.approx(0, abs=0.01), "with the host as it likely is neither gains"


def two_accounts(general_edit, more=1.01):
    """A finding that gains the host's time, and one that its rule explains and that gains a percent more by another edit, as `folded` orders them."""
    replay = two_kernels()
    calls = np.arange(len(replay.recorded.op_row))
    edit, general = faster_host(replay, 0.30), general_edit(replay)
    host = replace_edits(fix_of(replay, "launch-gap", calls), replay, edit)._replace(explains=("unfused-elementwise",))
    other = replace_edits(fix_of(replay, "unfused-elementwise", calls), replay, general)
    saving = msgspec.structs.replace(host.finding.saving, expected_us=more * host.finding.saving.expected_us)
    other = other._replace(finding=msgspec.structs.replace(other.finding, saving=saving))
    return [f.finding.rule for f in folded(replay, [other, host])], [f.finding.rule for f in folded(replay, [host, other])]


def faster_host(replay, by):
    share = np.full(len(replay.recorded.host_us), by)
    return WithoutHostTime(share, share)


def replace_edits(item, replay, edit):
    saving = Saving(0.0, replay.expected_share(edit) * replay.step_us, replay.step_us, "simulated")
    return item._replace(finding=msgspec.structs.replace(item.finding, saving=saving), edits=Edits.exact(edit))


def test_of_two_accounts_of_the_hosts_time_the_exact_one_leads_though_the_other_gains_a_percent_more():
    assert two_accounts(lambda replay: faster_host(replay, 0.31)) == (["launch-gap", "unfused-elementwise"],) * 2
    assert two_accounts(lambda replay: faster_host(replay, 0.31), more=1.5)[0] == ["unfused-elementwise", "launch-gap"], "it gains clearly more"


def test_an_account_of_the_hosts_time_does_not_lead_what_gains_the_devices():
    every = lambda replay: np.arange(len(replay.recorded.op_row))  # noqa: E731
    assert two_accounts(lambda replay: WithDurations(every(replay), np.full(len(every(replay)), 10.0)))[0] == ["unfused-elementwise", "launch-gap"]


def test_an_unconfirmed_finding_names_the_fix_that_gains_the_same_and_keeps_its_place():
    replay = two_kernels()
    every = np.arange(len(replay.recorded.op_row))

    def unconfirmed(kernels):
        item = fix_of(replay, "host-bound", kernels)
        return item._replace(finding=msgspec.structs.replace(item.finding, status="possible", severity="low"))

    for order in (1, -1):
        found = folded(replay, [fix_of(replay, "precision", every[::2]), unconfirmed(every[::2])][::order])
        assert {f.finding.rule: (f.finding.covered_by, f.finding.folded_into) for f in found} == {"precision": ("", ""), "host-bound": ("precision", "")}
    apart = folded(replay, [fix_of(replay, "precision", every[::2]), unconfirmed(every[1::2])])
    assert [f.finding.covered_by for f in apart] == ["", ""]
    told = aside(next(f.finding for f in found if f.finding.covered_by))
    assert told.endswith("Mostly covered by fixing precision.") and told.startswith(" Unconfirmed: ")
