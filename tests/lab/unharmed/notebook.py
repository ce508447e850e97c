"""Cells of a notebook: a step's loop in one, what it gave in the next, and an error that is shown and not the end."""

from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.colors = "NoColor"
cells = ("from loop import trained", "loss = trained()", "print('loss', loss)", "loss / 0", "trained(steps=60) < 1", "print('done')")
for cell in cells:
    print("->", shell.run_cell(cell, store_history=True).success)
