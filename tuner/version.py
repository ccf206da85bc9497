"""The version of tile-tuner."""

__version__ = "0.1.0"
