import runpy

from tests.paths import ROOT


def test_the_labs_page_says_what_was_measured():
    written = "\n".join(runpy.run_path(str(ROOT / "docs" / "lab_page.py"))["page"](ROOT / "docs" / "lab"))
    assert written == (ROOT / "docs" / "lab.md").read_text(encoding="utf-8"), "python docs/lab_page.py docs/lab > docs/lab.md"
