"""A fleet: a night on many devices and machines, whose workers Dask starts and watches."""
