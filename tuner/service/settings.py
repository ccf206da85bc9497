"""Settings of a server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from tuner.errors import InputError
from tuner.service.pool import ClusterChoice

#: Default address and port.
HOST, PORT = "127.0.0.1", 8421


@dataclass(frozen=True)
class Settings:
    """How a server runs.

    Attributes:
        db: URL of the database.
        host: Address to bind to.
        port: Port to bind to.
        devices: Specs of the devices that jobs may use; those of this machine if empty.
        local_admin: True to let everyone on this machine do everything while there are no tokens.
        hosts: Names by which clients may call the server, beside the address that it is bound to.
        root_path: Path under which a proxy serves it; empty for none.
        proxied: True to believe a proxy on this machine about the client's address and scheme.
        jobs: False to run no jobs here: they are taken and shown, and wait.
        cluster: What runs the jobs, in place of this machine's devices; None for those.
    """

    db: str
    host: str = HOST
    port: int = PORT
    devices: tuple[str, ...] = ()
    local_admin: bool = False
    hosts: tuple[str, ...] = ()
    root_path: str = ""
    proxied: bool = False
    jobs: bool = True
    cluster: ClusterChoice | None = None

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def host_names(self) -> frozenset[str] | None:
        """The names of Host headers that are answered; None for any.

        A page of a stranger can have its own name point to this machine; its requests then name the stranger.
        """
        if not self.is_loopback and not self.hosts:
            return None
        own = {"localhost", "127.0.0.1", "[::1]", self.host, f"[{self.host}]"}
        return frozenset(name.casefold() for name in (*own, *self.hosts))

    def check(self, *, has_tokens: bool) -> None:
        """Refuses settings that would let strangers in.

        Raises:
            InputError: An address that others reach, without tokens; or --local-admin with tokens.
        """
        if not self.is_loopback and not has_tokens:
            raise InputError(
                f"without tokens only this machine is served, got --host {self.host}; make tokens with `tuner "
                "token create NAME`, or leave --host out"
            )
        if self.local_admin and (has_tokens or not self.is_loopback):
            raise InputError(
                "--local-admin lets everyone on this machine do everything while there are no tokens, and "
                "there are some, or others are served; leave it out, and use a token of scope admin"
            )
