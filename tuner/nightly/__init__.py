"""A night: the problems of a plan share what is left until a deadline, in slices."""
