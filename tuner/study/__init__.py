"""Studies: opening, the loop of trials, the finals; and the sessions that they use."""
