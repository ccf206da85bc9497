"""Processes that compile and measure, and may crash or hang: started, called, limited, replaced."""
