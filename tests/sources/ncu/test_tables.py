"""What `ncu --csv` prints, by page, version and locale."""

import csv
import gzip
import io
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import TraceError
from advisor.recordings.kernel_profiles import KernelProfile
from advisor.sources import read
from tests.paths import ROOT, examples, slowly

WHO = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC"'
LAUNCH = '"0","9","python","host","f(int)","1","7","(256, 1, 1)","(1024, 2, 1)","0","9.0"'
RAW = f"""{WHO},"gpu__time_duration.sum","dram__bytes.sum.per_second","memory_l2_theoretical_sectors_global","launch__func_cache_config","sm__x.pct"
"","","","","","","","","","","","us","Gbyte/s","sector","","%"
{LAUNCH},"1,234.50","2.50","1,048,576","CachePreferNone","nan"
"""
DETAILS = f"""{WHO},"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description","Estimated Speedup Type","Estimated Speedup"
{LAUNCH},"GPU Speed Of Light Throughput","Duration","us","1,234.50",""
{LAUNCH},"GPU Speed Of Light Throughput","Memory Throughput","%","98.26",""
{LAUNCH},"Memory Workload Analysis","Memory Throughput","Gbyte/s","1,366.29",""
{LAUNCH},"SourceCounters","","","","UncoalescedGlobalAccess","OPT","This kernel has uncoalesced global accesses resulting in a total of 300 excessive sectors (75% of the total 400 sectors). Check it.","global","77.66"
{LAUNCH},"WarpStateStats","","","","CPIStall","OPT","On average, each warp of this workload spends 55.1 cycles being stalled waiting for a scoreboard dependency on a L1TEX (local, global, surface, texture) operation. Find it.","global","1.7"
"""
OLD = """==PROF== Connected to process 1
hello from the program, "quoted
"ID","Process ID","Process Name","Host Name","Kernel Name","Kernel Time","Context","Stream","Section Name","Metric Name","Metric Unit","Metric Value"
"0","1","cfd","127.0.0.1","f","2020-Apr-07 17:01:05","1","7","GPU Speed Of Light","SOL FB","%","39.60"
"0","1","cfd","127.0.0.1","f","2020-Apr-07 17:01:05","1","7","GPU Speed Of Light","Duration","usecond","12.40"
"0","1","cfd","127.0.0.1","f","2020-Apr-07 17:01:05","1","7","Launch Statistics","Block Size","","256"
"0","1","cfd","127.0.0.1","f","2020-Apr-07 17:01:05","1","7","Command line profiler metrics","dram__bytes.sum","Mbyte","12.50"
"1","1","cfd","127.0.0.1","f","2020-Apr-07 17:01:06","1","7","GPU Speed Of Light","Duration","msecond","3.00"
"""
SUMMARY = """"Process ID","Kernel Name","Invocations","Section Name","Metric Name","Metric Unit","Minimum","Maximum","Average"
"1","f","2","GPU Speed Of Light Throughput","Duration","us","1","3","2"
"""
GERMAN = f"""{WHO},"Section Name","Metric Name","Metric Unit","Metric Value"
{LAUNCH},"GPU Speed Of Light Throughput","Duration","ns","1.234.500"
{LAUNCH},"GPU Speed Of Light Throughput","Memory Throughput","%","98,26"
"""


def kernels(tmp_path: Path, text: str) -> tuple[KernelProfile, ...]:
    path = tmp_path / "k.csv"
    path.write_text(text, encoding="utf-8")
    return read(path).parts[0].kernels  # type: ignore[attr-defined,no-any-return]


def test_the_raw_page(tmp_path):
    (found,) = kernels(tmp_path, RAW)
    assert (found.name, found.grid, found.block, found.capability, found.stream) == (
        "f(int)",
        (1024, 2, 1),
        (256, 1, 1),
        (9, 0),
        7,
    )
    assert found.duration_us == 1234.5
    assert found.metrics == {
        "gpu__time_duration.sum": 1_234_500.0,
        "dram__bytes.sum.per_second": 2.5e9,
        "memory_l2_theoretical_sectors_global": 1_048_576.0,
    }


def test_a_page_that_ends_inside_a_row_is_said_to_and_that_row_is_left_out(tmp_path):
    path = tmp_path / "k.csv"
    for text, whole in ((RAW + LAUNCH.replace('"0"', '"1"', 1) + ',"1,2', 1), (OLD.strip()[:-4], 1), (OLD.strip()[:-16], 1)):
        path.write_text(text, encoding="utf-8")
        (found,) = read(path).parts
        assert len(found.kernels) == whole and "it ends inside row" in found.damage
    for text in (RAW, RAW.strip(), OLD.strip(), DETAILS.strip(), f"{RAW.strip()}\nall done, at last"):
        path.write_text(text, encoding="utf-8")
        assert not read(path).parts[0].damage


def test_a_further_pass_of_a_launch_is_the_same_launch(tmp_path):
    header, units, row = RAW.splitlines()
    empty = LAUNCH + ',"","","","",""'
    (found,) = kernels(tmp_path, "\n".join([header, units, empty, row, header]))
    assert found.duration_us == 1234.5


def test_the_details_page_in_the_raw_page_s_names(tmp_path):
    (found,) = kernels(tmp_path, DETAILS)
    assert found.get("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed") == 98.26
    assert found.get("dram__bytes.sum.per_second") == 1366.29e9
    assert found.get("derived__memory_l2_theoretical_sectors_global_excessive") == 300
    assert found.get("smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio") == 55.1


def test_pages_of_older_versions_behind_what_the_program_printed(tmp_path):
    first, second = kernels(tmp_path, OLD)
    assert first.duration_us == 12.4 and first.block == (256, 1, 1) and first.get("dram__bytes.sum") == 12.5e6
    assert first.get("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed") == 39.6
    assert second.duration_us == 3000


def test_summaries_give_their_average(tmp_path):
    (found,) = kernels(tmp_path, SUMMARY)
    assert found.duration_us == 2


def test_numbers_as_another_locale_writes_them(tmp_path):
    (found,) = kernels(tmp_path, GERMAN)
    assert found.duration_us == 1234.5
    assert found.get("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed") == 98.26


@pytest.mark.parametrize("number", ["1e+300", "1" * 400, "-1e19", "1e-300", "nan", "inf"])
def test_what_no_counter_gives_is_as_if_it_were_not_collected(tmp_path, number):
    (raw,) = kernels(tmp_path, RAW.replace("1,048,576", number))
    assert raw.metrics == {"gpu__time_duration.sum": 1_234_500.0, "dram__bytes.sum.per_second": 2.5e9}
    (details,) = kernels(tmp_path, DETAILS.replace("98.26", number).replace("55.1", number))
    assert "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed" not in details.metrics
    assert "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio" not in details.metrics
    assert details.get("dram__bytes.sum.per_second") == 1366.29e9


def test_a_number_that_its_unit_takes_beyond_any_counter_is_none_either(tmp_path):
    for cell, expected in (("9,223,372,036.00", 9_223_372_036e9), ("9,223,372,037.00", None)):  # 2**63 is 9,223,372,036.85 G
        (found,) = kernels(tmp_path, DETAILS.replace("1,366.29", cell))
        assert found.get("dram__bytes.sum.per_second") == expected


def test_a_remark_with_what_is_no_number_says_nothing(tmp_path):
    (found,) = kernels(tmp_path, DETAILS.replace("55.1", "5.5.1"))
    assert found.duration_us == 1234.5 and not any("stalled" in name for name in found.metrics)


LOCALES = {"German": (".", ","), "French": ("\u202f", ","), "Swiss": ("’", "."), "Russian": ("\u00a0", ",")}


@pytest.mark.parametrize("locale", slowly(LOCALES, quick=1))
@pytest.mark.parametrize("page", ["raw", "details"])
def test_a_whole_page_says_the_same_in_every_locale(tmp_path, page, locale):
    english = gzip.decompress((ROOT / "samples" / "kernels" / f"pairs_{page}.csv.gz").read_bytes()).decode()
    group, point = LOCALES[locale]
    header, *rows = csv.reader(io.StringIO(english))
    texts = {i for i, name in enumerate(header) if name in ("CC", "Kernel Name", "Block Size", "Grid Size", "Rule Description")}

    def spelt(row):
        return [
            cell.replace(",", "_").replace(".", point).replace("_", group) if i not in texts and re.fullmatch(r"-?[\d,]+(\.\d+)?(e[-+]?\d+)?", cell) else cell
            for i, cell in enumerate(row)
        ]

    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL).writerows([header, *map(spelt, rows)])
    other = out.getvalue()
    assert other != english
    assert [k.metrics for k in kernels(tmp_path, other)] == [k.metrics for k in kernels(tmp_path, english)]


@pytest.mark.parametrize("text", ["==PROF== Connected to process 1\nno table\n", RAW.splitlines()[0] + "\n", DETAILS.splitlines()[0] + "\n"])
def test_a_page_without_kernels_says_how_to_get_one(tmp_path, text):
    with pytest.raises(TraceError) as caught:
        kernels(tmp_path, text)
    assert "ncu" in caught.value.hint


@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from([RAW, DETAILS, OLD, SUMMARY]), st.integers(0, 900), st.text(max_size=12), st.integers(0, 40))
def test_no_damage_breaks_the_reader(tmp_path_factory, page, at, damage, cut):
    path = tmp_path_factory.mktemp("fuzz") / "k.csv"
    path.write_text(page[:at] + damage + page[at + cut :], encoding="utf-8", errors="replace")
    try:
        recording = read(path)
    except TraceError:
        return
    assert recording.parts
