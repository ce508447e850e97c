"""Python runs a module of this name at its start, and finds this module in a program that `advisor.lab.injection` started.

It removes its folder from the path, starts `advisor.lab.in_program`, and then loads the module that it hides. Any Python of the program
may load it, even versions that advisor does not support: so this file uses only plain Python."""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _here]
sys.path_importer_cache.pop(_here, None)
_this = sys.modules.pop(__name__)  # kept, or an old Python empties it
if sys.version_info >= (3, 10):  # noqa: UP036
    try:
        # Under a name of its own: `advisor` is the program's to import, and may be something else there.
        _package = type(sys)("_advisor_in_program")
        _package.__path__ = [os.path.dirname(os.path.dirname(_here))]
        sys.modules[_package.__name__] = _package
        __import__("_advisor_in_program.lab.in_program")
        sys.modules["_advisor_in_program.lab.in_program"].begin(_here)
    except Exception:  # whatever it is, the program runs
        pass
else:  # what advisor does not run on is not recorded, nor what it starts
    _was_set = os.environ.pop("ADVISOR_IN_PROGRAM", "").startswith("1")
    _path = os.pathsep.join([path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path != _here])
    if _path or _was_set:
        os.environ["PYTHONPATH"] = _path
    else:
        os.environ.pop("PYTHONPATH", None)

import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401  the program's own; where there is none, Python is told so
