"""What each mechanism is worth: recorded programs that it was not written on, judged with it and without it."""
