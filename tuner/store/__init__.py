"""The store: records and champions in one database, durable at each call. The only SQL of the package.

`Store` is loaded when it is first named: published results, which lie in this package too, need no SQL.
"""

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from tuner.store.store import Store

__all__ = ["Store"]


def __getattr__(name: str) -> object:
    if name != "Store":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tuner.store.store import Store

    globals()[name] = Store
    return Store
