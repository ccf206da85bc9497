"""One file per schema, in order; a released one does not change."""
