"""`advisor try`: runs a program with the fixes of its report applied from outside, and says what each gains."""
