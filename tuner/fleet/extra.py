"""What this package adds to the core: nights on many machines."""

from tuner.extras import Command, Extra

EXTRA = Extra(
    commands={
        "worker": Command("tuner.fleet.command:worker", "Let this machine's devices work for a fleet.", "Tune"),
    },
    provides={"cluster": "tuner.fleet.command"},
)
