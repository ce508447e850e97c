import json
import math
import sys

import pytest

from advisor.lab.attention.components import COMPONENTS, AttentionProfile, Component
from advisor.lab.attention.levels import Level
from advisor.lab.attention.session import Session, session_charts
from advisor.lab.bottleneck import identify_bottleneck
from advisor.lab.intensity import bound

torch = pytest.importorskip("torch")

import advisor  # noqa: E402
from advisor.cli import main  # noqa: E402
from advisor.errors import UsageError  # noqa: E402
from advisor.knowledge import devices  # noqa: E402
from advisor.lab.attention.levels import _no_flash, run_level  # noqa: E402

GOLDEN = """\
Attention Component Profiling:
========================================
Component           Time (ms)    % Total
----------------------------------------
QKV Projection      2.31         15.4%
Score Computation   5.67         37.8%
Softmax             1.23          8.2%
Weighted Sum        4.89         32.6%
Output Projection   0.90          6.0%
----------------------------------------
Total               15.00       100.0%

Bottleneck: Score Computation (37.8%)
Recommendation: Use Flash Attention"""


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr("advisor.lab.bench.WARMUP_S", 0.0)
    monkeypatch.setattr("advisor.lab.bench.FEWEST", 3)
    monkeypatch.setattr("advisor.lab.bench.MOST", 3)


def profile(*times_ms, **more):
    return AttentionProfile(tuple(Component(name, ms, **more) for name, ms in zip(COMPONENTS, times_ms, strict=True)))


def test_the_printed_form_is_the_one_that_stands():
    assert str(profile(2.31, 5.67, 1.23, 4.89, 0.90)) == GOLDEN


def test_a_projection_is_not_cured_by_flash_attention():
    assert "Flash" not in profile(9.0, 1.0, 1.0, 1.0, 1.0).recommendation


def test_the_components_come_in_order_with_their_work():
    found = advisor.profile_attention_components(16, 32, 4, batch=2, causal=True, dropout=0.1, device="cpu")
    assert tuple(row.name for row in found.rows) == COMPONENTS and all(row.ms > 0 for row in found.rows)
    # 2 sequences of 16, 4 heads of 8: 2·4·16·16 scores, each a product over 8 channels.
    scores = found.rows[1]
    assert scores.flops == 2 * (2 * 4 * 16 * 16) * 8
    assert scores.moved_bytes == 4 * (2 * 2 * 16 * 32 + 2 * 4 * 16 * 16)
    saved = json.loads(found.to_json())
    assert [row["name"] for row in saved["rows"]] == list(COMPONENTS) and saved["rows"][0]["roofline_share"] is None
    assert list(found.to_frame().columns) == ["name", "ms", "percent", "flops", "bytes", "roofline_share"]
    assert "<table>" in found._repr_html_()


def test_heads_must_divide_the_channels():
    with pytest.raises(UsageError, match="do not divide"):
        advisor.profile_attention_components(16, 30, 4)


@pytest.mark.parametrize("size", ["d_model", "num_heads", "batch"])
def test_a_size_below_one_is_named(size):
    with pytest.raises(UsageError, match=f"^{size} is 0$"):
        advisor.profile_attention_components(16, **{"d_model": 32, "num_heads": 4, size: 0})


def test_the_bottleneck_is_named_with_what_bounds_it():
    h200 = devices.find("NVIDIA H200")
    # 60 FLOP for 20 bytes: 3 FLOP a byte, far below the ridge of BF16 (989.5 TFLOP/s over 4.8 TB/s).
    known = bound(60.0, 20.0, "bfloat16", h200)
    found = identify_bottleneck(profile(1.0, 6.0, 1.0, 1.0, 1.0, flops=60.0, moved_bytes=20.0, bound=known))
    assert (found.component, found.percent, found.limit, found.intensity) == ("Score Computation", 60.0, "memory", 3.0)
    assert found.ridge == pytest.approx(989.5e12 / 4.8e12)
    assert "below the device's ridge point of 206" in found.why and "A fused kernel" in found.why
    assert identify_bottleneck(profile(1.0, 6.0, 1.0, 1.0, 1.0, flops=60.0, moved_bytes=20.0)).limit == "unknown"


@pytest.mark.parametrize("level", [0, 2, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_levels_agree_with_fp64(level, causal, capsys):
    q, k, v = (torch.randn(2, 3, 8, 4) for _ in range(3))
    measured, output = run_level(q, k, v, level, causal=causal)
    exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal)
    assert (output - exact).abs().max() < 1e-5
    assert measured.max_error == pytest.approx(float((output.double() - exact).abs().max()), abs=1e-9)
    assert not measured.failed and measured.ms > 0


def test_flash_attention_says_why_another_level_ran(capsys):
    q = torch.randn(2, 8, 4)
    with pytest.warns(UserWarning, match="flash attention needs a GPU; level 2 ran"):
        output = advisor.optimize_attention(q, q, q, 3)
    assert output.shape == q.shape and output.measured.ran == 2
    assert "Level 3 (flash)" in capsys.readouterr().out
    half = q.bfloat16()
    assert _no_flash(half.to("meta"), None) == ""
    assert "no mask" in _no_flash(half.to("meta"), torch.ones(8, 8, dtype=torch.bool, device="meta"))
    assert "float32" in _no_flash(q.to("meta"), None)


def test_masks_count_in_every_level_that_takes_them():
    q, k, v = (torch.randn(2, 3, 8, 4) for _ in range(3))
    mask = torch.rand(2, 3, 8, 8) > 0.3
    mask[..., 0] = True
    outputs = [run_level(q, k, v, level, mask=mask)[1] for level in (0, 2)]
    assert (outputs[0] - outputs[1]).abs().max() < 1e-5
    added = torch.zeros(2, 3, 8, 8).masked_fill(~mask, float("-inf"))
    assert (run_level(q, k, v, 0, mask=added)[1] - outputs[0]).abs().max() < 1e-5


def test_a_result_that_is_no_number_fails():
    q = torch.full((2, 8, 4), float("inf"))
    with pytest.raises(UsageError, match="NaN or Inf"):
        advisor.optimize_attention(q, q, q, 0)


def test_a_level_that_cannot_run_is_told_not_raised(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no compiler\nhere")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: broken)
    q = torch.randn(2, 8, 4)
    assert run_level(q, q, q, 1)[0].failed == "cannot run here: no compiler"
    with pytest.raises(UsageError, match="there is no level 4"):
        run_level(q, q, q, 4)


def session(*levels):
    return Session("a device", "bfloat16", (128,), (profile(1.0, 2.0, 1.0, 1.0, 1.0),), (levels,))


def test_the_session_names_the_fastest_that_ran_as_itself():
    fast_by_proxy = Level(3, 2, 0.5, 1e-3, note="level 2 ran")
    told = str(session(Level(0, 0, 4.0, 1e-3), Level(2, 2, 1.0, 1e-3), fast_by_proxy))
    assert "sdpa is the fastest: 4.00 times as fast as naive" in told
    assert "the baseline is the fastest here" in str(session(Level(0, 0, 1.0, 1e-3), Level(2, 2, 2.0, 1e-3)))
    alone = session(Level(0, 0, 4.0, 1e-3), fast_by_proxy)  # then it stands for the level that ran
    assert "sdpa is the fastest: 8.00 times as fast as naive" in str(alone) and alone.to_dict()["sequences"][0]["fastest"] == "sdpa"
    failed = session(Level(0, 0, math.nan, math.nan, failed="cannot run here"), Level(2, 2, 1.0, 1e-3))
    assert "nothing to compare" in str(failed)
    assert "cannot run" in failed._repr_html_() and "as sdpa" in session(Level(0, 0, 4.0, 1e-3), fast_by_proxy)._repr_html_()
    assert json.loads(failed.to_json())["sequences"][0]["levels"][0]["ms"] is None


def test_charts_are_drawn_of_what_was_measured():
    import xml.etree.ElementTree as ET

    made = session(Level(0, 0, 4.0, 1e-3), Level(1, 1, math.nan, math.nan, failed="cannot run here"))
    for name, svg in session_charts(made):
        assert ET.fromstring(svg) is not None and name.endswith(".svg")


def test_the_command_writes_the_session_and_its_plots(tmp_path, monkeypatch, capsys):
    few = ["--seq-lengths", "8,16", "--d-model", "8", "--num-heads", "2", "--batch", "1", "--dtype", "fp32", "--impl", "naive,sdpa"]
    targets = ["--output", str(tmp_path / "out.json"), "--output-dir", str(tmp_path / "plots")]
    monkeypatch.setattr(sys, "argv", ["advisor", "attention", *few, *targets])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    saved = json.loads((tmp_path / "out.json").read_text())
    assert [row["seq_len"] for row in saved["sequences"]] == [8, 16]
    assert [level["name"] for level in saved["sequences"][0]["levels"]] == ["naive", "sdpa"]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == ["components.svg", "levels.svg"]


@pytest.mark.parametrize(("option", "value"), [("--dtype", "int3"), ("--impl", "magic"), ("--seq-lengths", "8,-1"), ("--format", "csv")])
def test_the_command_says_what_it_does_not_know(monkeypatch, capsys, option, value):
    monkeypatch.setattr(sys, "argv", ["advisor", "attention", option, value])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and value in capsys.readouterr().err
