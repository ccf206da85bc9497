"""What this package adds to the core: nothing but itself. Who has PyTorch imports it."""

from tuner.extras import Extra

EXTRA = Extra()
