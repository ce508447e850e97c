import pytest

torch = pytest.importorskip("torch")

import advisor  # noqa: E402


def test_the_peak_holds_what_lived_at_once():
    def three():
        a = torch.ones(1000)  # 4,000 bytes
        b = a + 1  # 8,000 together
        del a
        return b + 1  # 8,000 again

    used = advisor.measure_memory_usage(three)
    # Numbers that are added become tensors of a few bytes.
    assert (used.device, used.peak_bytes, used.cached_bytes) == ("cpu", pytest.approx(8000, abs=64), None)
    assert used.current_bytes == pytest.approx(4000, abs=64) and "peak" in str(used)
    assert used.to_dict()["peak_bytes"] == used.peak_bytes


def test_a_function_that_allocates_nothing():
    assert advisor.measure_memory_usage(lambda x: x, (1,)).peak_bytes == 0


def test_memory_is_printed_in_gigabytes(capsys):
    advisor.profile_memory()
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["Current memory", "Peak memory", "Cached memory"]
