"""The table of peak rates: dense, sourced, and found by the names that traces hold."""

from __future__ import annotations

import gzip
import re

import pytest

from advisor.knowledge.data import load
from advisor.knowledge.devices import Peaks, all_peaks, find, of_device, own
from advisor.recordings.timeline import Device
from advisor.views.device_rates import DeviceRates
from tests.paths import needs_shared, shared_files

# Names in the shared traces that don't say which chip it is, or whose rates no document at hand states.
UNKNOWN = {
    "", "AMD Radeon Graphics", "ARTEMIS",
    "NVIDIA H100",  # 102 GB: a part made for one customer, with other memory than the H100 that is sold
    "Quadro GP100",
}  # fmt: skip

# With sparsity, as datasheets print them in the largest type.
SPARSE = {
    "H100 SXM5 80 GB": 1979, "H100 PCIe": 1513, "H200": 1979, "GH200 96 GB": 1979, "A100 SXM4 80 GB": 624, "L4": 242,
    "L40S": 733, "A10": 250, "A10G": 140, "RTX A6000": 309.7, "RTX 4090": 330.4, "B200": 4500, "GB200": 5000, "MI300X": 2614.9,
}  # fmt: skip


def named(name: str) -> Peaks:
    return next(peaks for peaks in all_peaks() if peaks.name == name)


@pytest.mark.parametrize(("name", "sparse"), SPARSE.items())
def test_no_rate_is_the_sparse_one(name: str, sparse: float) -> None:
    """PyTorch's device_info gives the H100 1979 TFLOP/s in bf16 and forgets the factor."""
    assert named(name).bf16_tflops == pytest.approx(sparse / 2, rel=0.02)


def test_the_l4_has_300_gb_per_second() -> None:
    """PyTorch's device_info gives it the H100's 3350."""
    l4 = find("NVIDIA L4")
    assert l4 is not None
    assert l4.bytes_per_s == 300e9


@pytest.mark.parametrize(
    ("name", "precision", "ridge"),
    [("NVIDIA H200", "bf16", 206), ("NVIDIA H100 80GB HBM3", "bf16", 295), ("NVIDIA A100-SXM4-80GB", "bf16", 153),
     ("NVIDIA A100-SXM4-80GB", "tf32", 76.5), ("Tesla V100-SXM2-16GB", "fp16", 139), ("NVIDIA H200", "fp32", 14)],
)  # fmt: skip
def test_ridge(name: str, precision: str, ridge: float) -> None:
    peaks = find(name)
    assert peaks is not None
    assert peaks.ridge(precision) == pytest.approx(ridge, rel=0.01)


def test_what_a_chip_lacks_is_none() -> None:
    v100 = find("Tesla V100-SXM2-32GB")
    assert v100 is not None
    assert v100.flops_per_s("bf16") is None
    assert v100.ridge("tf32") is None
    assert v100.achievable_flops_per_s("fp8") is None
    assert v100.flops_per_s("") is None


def test_board_number_gives_rates_but_no_bandwidth() -> None:
    a100 = find("NVIDIA A100-PG509-200")
    assert a100 is not None
    assert a100.flops_per_s("bf16") == 312e12
    assert a100.bytes_per_s is None
    assert a100.achievable_bytes_per_s is None
    assert a100.ridge("bf16") is None


def test_h200_reaches_what_was_measured_on_it() -> None:
    h200 = find("NVIDIA H200")
    assert h200 is not None
    assert h200.achievable_bytes_per_s == pytest.approx(4.3e12, rel=0.01)
    assert h200.achievable_flops_per_s("bf16") == pytest.approx(788e12, rel=0.01)
    assert h200.host_link_gbps == 55


def test_fp64_uses_the_fastest_unit() -> None:
    a100 = find("NVIDIA A100-SXM4-40GB")
    t4 = find("Tesla T4")
    assert a100 is not None and t4 is not None
    assert a100.flops_per_s("fp64") == 19.5e12
    assert t4.flops_per_s("fp64") is None


@pytest.mark.parametrize("peaks", all_peaks(), ids=lambda peaks: peaks.name)
def test_every_entry_is_sourced_and_plausible(peaks: Peaks) -> None:
    assert len(peaks.source) > 10
    assert peaks.names
    assert 0.4 < peaks.achievable_flops < 1
    assert 0.6 < peaks.achievable_memory < 1
    assert peaks.fp32_tflops is not None
    for slow, fast in (("tf32", "bf16"), ("bf16", "fp8")):
        if (low := peaks.flops_per_s(slow)) and (high := peaks.flops_per_s(fast)):
            assert high / low == pytest.approx(2, rel=0.02), f"{fast} runs at twice {slow} on every dense chip"
    if peaks.bf16_tflops:
        assert peaks.bf16_tflops == peaks.fp16_tflops


def test_every_key_of_the_file_is_a_field_and_every_name_stands_once() -> None:
    known = {*Peaks.__struct_fields__} - {"host_link_gbps"} | {"host_link"}
    names = []
    for entry in load("devices")["device"]:
        assert set(entry) <= known
        names += entry["names"]
    assert len(set(names)) == len(names)
    assert all(link["source"] for link in load("devices")["host_links"].values())


@pytest.mark.parametrize(
    "name",
    ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA RTX 5000 Ada Generation Laptop GPU", "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
     "NVIDIA A10-24Q", "NVIDIA A100", "Quadro P6000", *sorted(UNKNOWN)],
)  # fmt: skip
def test_variants_and_strangers_are_unknown(name: str) -> None:
    assert find(name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A100-SXM4-80GB", "A100 SXM4 80 GB"),
        ("nvidia  h100 pcie", "H100 PCIe"),
        ("GeForce RTX 3090", "RTX 3090"),
        ("AMD Instinct MI300X VF", "MI300X"),
    ],
)
def test_vendor_words_case_and_punctuation_do_not_matter(name: str, expected: str) -> None:
    peaks = find(name)
    assert peaks is not None
    assert peaks.name == expected


@needs_shared
def test_names_in_shared_traces_are_found() -> None:
    seen = set()
    for path in shared_files("**/kineto/**/*.json.gz") + shared_files("corpus/ranks/**/*.json.gz"):
        with gzip.open(path, "rt", errors="replace") as file:
            head = file.read(20_000)  # deviceProperties stand before the events
        for device in re.findall(r'"name": "([^"]*)",\s*"totalGlobalMem"', head):
            seen.add(device)
    assert len(seen) >= 6
    assert {name for name in seen if find(name) is None} <= UNKNOWN


def test_an_unknown_card_is_estimated_from_its_generation_and_a_known_one_is_not() -> None:
    laptop = of_device("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9), 76)
    assert laptop is not None and laptop.estimated
    # 76 multiprocessors x 256 FLOP x 2.5 GHz; the memory's rate cannot be guessed.
    assert laptop.fp32_tflops == pytest.approx(48.6, rel=0.01) and laptop.bytes_per_s is None
    known = of_device("NVIDIA H200", (9, 0), 132)
    assert known is not None and not known.estimated
    assert of_device("", (0, 0), 0) is None and of_device("AMD Radeon Graphics", (9, 0), 104) is None


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "NVIDIA GeForce RTX 4090", "NVIDIA B200"])
def test_the_estimate_comes_within_a_fifth_of_datasheets(name: str) -> None:
    chip = {"H100": ((9, 0), 132), "A100": ((8, 0), 108), "V100": ((7, 0), 80), "4090": ((8, 9), 128), "B200": ((10, 0), 148)}
    capability, sms = next(value for key, value in chip.items() if key in name)
    known, made = find(name), of_device(name + " of another make", capability, sms)
    assert known is not None and made is not None
    assert made.fp16_tflops == pytest.approx(known.fp16_tflops, rel=0.2) and made.fp32_tflops == pytest.approx(known.fp32_tflops, rel=0.2)


def test_an_orin_is_known_by_its_multiprocessors() -> None:
    agx, nx = of_device("Orin", (8, 7), 16), of_device("Orin", (8, 7), 8)
    assert agx is not None and not agx.estimated and agx.memory_gbps == 204.8
    assert nx is not None and nx.estimated and nx.fp32_tflops == pytest.approx(2.66, rel=0.01)  # 8 x 256 FLOP x 1.3 GHz


def test_what_the_user_says_of_a_device_goes_first() -> None:
    mine = own("NVIDIA H200", {"bf16_tflops": 500, "memory_gbps": 4000.0}, "pyproject.toml")
    rates = DeviceRates((mine,))
    found = rates.peaks_of(Device(0, "nvidia h200", 132, (9, 0)))
    assert found is mine and found.flops_per_s("bf16") == 500e12 and found.achievable_memory == 0.85
    known = rates.peaks_of(Device(0, "NVIDIA H100 PCIe", 114, (9, 0)))
    assert known is not None and known.name == "H100 PCIe"


@pytest.mark.parametrize("rates", [{"speed": 1}, {"fp16_tflops": -1}, {"fp16_tflops": "fast"}, {"fp16_tflops": True}, {"memory_gbps": float("nan")}])
def test_what_is_no_rate_is_refused(rates: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="rate"):
        own("mine", rates, "pyproject.toml")


@pytest.mark.parametrize(
    "name",
    [
        *(f"NVIDIA GeForce RTX {n}" for n in (2060, 2080, 3050, 3060, 3070, 3080, 3090, 4060, 4070, 4080, 4090, 5060, 5070, 5080, 5090)),
        *(f"NVIDIA GeForce RTX {n} Ti" for n in (2080, 3060, 3070, 3080, 3090, 4060, 4070, 5060, 5070)),
        *(f"Quadro RTX {n}" for n in (4000, 5000, 6000, 8000)), *(f"NVIDIA RTX A{n}" for n in (2000, 4000, 4500, 5000, 6000)),
        *("NVIDIA L20", "NVIDIA H20", "NVIDIA H800", "NVIDIA GB200", "NVIDIA GB300", "NVIDIA T4G", "Tesla V100-DGXS-32GB"),
        *("AMD Instinct MI325X", "AMD Instinct MI355X", "AMD Instinct MI300X VF"),
    ],
)  # fmt: skip
def test_devices_that_others_trace_on_are_known_by_name(name):
    peaks = find(name)
    assert peaks and peaks.source and peaks.memory_gbps and peaks.fp32_tflops


def test_a_jetson_calls_itself_orin():
    assert of_device("Orin", (8, 7), 16).fp16_tflops and of_device("Orin", (8, 7), 8).estimated
