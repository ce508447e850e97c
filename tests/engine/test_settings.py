"""Settings: what a team can set, and that every mistake in them is named."""

import pytest

from advisor.engine import settings
from advisor.engine.rule import catalog
from advisor.engine.run import analyze
from advisor.errors import UsageError
from tests.paths import ROOT

SLOW = ROOT / "samples" / "launch-gap" / "slow.json.gz"
BOTH = ROOT / "samples" / "sync-stall" / "slow.json.gz"


def written(tmp_path, text, name="pyproject.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_the_example_in_the_errors_is_valid(tmp_path):
    found = settings.load(written(tmp_path, settings.EXAMPLE))
    found.check(catalog())
    assert found.disable == ("low-arithmetic-intensity",) and found.options["launch-gap"]["min_idle_share"] == 0.2
    assert found.rules == (tmp_path / "perf/our_rules.py",)


def test_the_nearest_pyproject_that_has_settings_is_used(tmp_path):
    written(tmp_path, '[tool.advisor]\ndisable = ["memcpy"]')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    written(inner, '[project]\nname = "x"')
    assert settings.load(start=inner).disable == ("memcpy",)


def test_a_file_of_its_own_needs_no_table(tmp_path):
    assert settings.load(written(tmp_path, 'disable = ["memcpy"]', "advisor.toml")).disable == ("memcpy",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("disable = [", "no TOML"),
        ('colour = "red"', "no setting 'colour'"),
        ("disable = 3", "disable has to be a list"),
        ('allow = ["memcpy"]', "allow has to be a table of reasons by rule: allow = {"),
        ('disable = ["nothing"]', "does not exist"),
        ('allow = { "memcpy" = "" }', "gives no reason"),
        ("[options.launch-gap]\nmin_idle = 0.1", "no option 'min_idle'"),
        ("[options.launch-gap]\nmin_idle_share = 1.5", "is out of range"),
        ('[options.launch-gap]\nmin_idle_share = "much"', "not like its default"),
        ("[options.launch-gap]\nmin_idle_share = true", "not like its default"),
    ],
)
def test_every_mistake_is_named(tmp_path, text, says):
    with pytest.raises(UsageError) as error:
        settings.load(written(tmp_path, text, "advisor.toml")).check(catalog())
    assert says in error.value.message


def test_an_option_moves_the_threshold():
    rules = [catalog()["launch-gap"]]
    assert analyze(SLOW, rules=rules).findings
    report = analyze(SLOW, rules=rules, options={"launch-gap": {"min_idle_share": 0.99}})
    assert not report.findings and "99%" in report.clear[0].why


def test_an_allowed_finding_stays_with_its_reason_and_out_of_the_headline():
    rules = [catalog()["launch-gap"]]
    report = analyze(SLOW, rules=rules, allow={"launch-gap": "batch 1 is the product"})
    (finding,) = report.findings
    assert finding.allowed == "batch 1 is the product" and finding.severity == "info"
    assert report.headline.predicted_step_us.expected == report.headline.step_us


def test_a_symptom_is_folded_into_its_cause():
    path = ROOT / "samples" / "launch-gap" / "many_small_ops.slow.trace.zst"
    every = {f.rule: f for f in analyze(path, options={"unfused-elementwise": {"min_saving_share": 0.0}}).findings}
    # One graph launch replaces every launch: whatever else would have saved launches gains nothing more.
    for finding in every.values():
        if finding.folded_into:
            assert every[finding.folded_into].saving.expected_us >= 0.85 * finding.saving.expected_us
            assert finding.severity in ("low", "info")


def test_rates_of_a_device_that_nobody_knows(tmp_path):
    text = '[tool.advisor.devices."My Card"]\nfp16_tflops = 62\nmemory_gbps = 256'
    (mine,) = settings.load(written(tmp_path, text)).devices
    assert mine.names == ("My Card",) and mine.fp16_tflops == 62 and mine.bytes_per_s == 256e9 and "[tool.advisor.devices]" in mine.source
    with pytest.raises(UsageError, match="speed is no rate"):
        settings.load(written(tmp_path, "[tool.advisor.devices.x]\nspeed = 1"))
    with pytest.raises(UsageError, match="devices: "):
        settings.load(written(tmp_path, "[tool.advisor.devices]\nx = 1"))
