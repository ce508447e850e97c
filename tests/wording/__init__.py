"""How advisor writes: the field's terms, short sentences, none of its old habits. `python -m tests.wording [AREA …]` lists what is wrong."""
