"""Which files are a library's, by their paths on any machine."""

IN_LIBRARY = r"(^|/)(site-packages|dist-packages)/|(^|/)lib/python\d|^<|(^|/)torchinductor_|/c[a-z2-7]{51}\.py$"
"""A regular expression, to search a path with: installed packages, the standard library, code that is in no file, and what Inductor generated, which
it names by a hash."""
