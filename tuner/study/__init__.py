"""One run: opening, the loop of trials, the finals; and what it stands on."""
