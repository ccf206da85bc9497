"""What is asked and answered: the same functions for the command line, the service and Python."""
