"""What `advisor try` applies to a program from outside: a table of what there is (catalogue.toml), and the code that does it inside of the program."""
