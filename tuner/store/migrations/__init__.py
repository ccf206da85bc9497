"""Alembic's scripts: how a database of an older version is brought forward."""
