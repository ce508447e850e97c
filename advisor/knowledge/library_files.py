"""Which files are a library's, by their paths on any machine."""

IN_LIBRARY = r"(^|/)(site-packages|dist-packages)/|(^|/)lib/python\d|^<"
"""A regular expression, to search a path with: installed packages, the standard library, code that is in no file."""
