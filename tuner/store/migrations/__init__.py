"""Alembic's scripts, which migrate databases of older versions."""
