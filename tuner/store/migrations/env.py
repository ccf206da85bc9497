"""Runs the migrations on the connection, and inside the transaction, that the store hands over."""

from alembic import context

from tuner.store.tables import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
