"""What views, rules and reports mean by most, nearly all, little and hardly any of something: one number each, so that none of them is moved for one program."""

MOST = 0.5
"""More than all else together."""

NEARLY_ALL = 0.9
"""What is left is an exception: a branch, a first or last pass, what a recording lost."""

LITTLE = 0.1
"""What is below it says nothing of the rest."""

HARDLY_ANY = 0.05
"""An unprofiled run cannot tell it from its own noise."""
