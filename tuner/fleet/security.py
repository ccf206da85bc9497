"""Certificates for TLS between scheduler, workers and coordinator.

Whoever can send to a scheduler can run code on its workers, so an open network needs TLS on all three sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.errors import InputError


@dataclass(frozen=True)
class Certificates:
    """Files in PEM form; all or none.

    Attributes:
        authority: Certificate of the authority that signed the others.
        certificate: This process's certificate.
        key: Its private key.
    """

    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def security(self, role: str) -> Any:
        """Returns Dask's settings for a process; None without certificates.

        Args:
            role: ``client`` or ``worker``.

        Raises:
            InputError: Some of the files are named and others not, or one is missing.
        """
        given = {"--tls-ca": self.authority, "--tls-cert": self.certificate, "--tls-key": self.key}
        if not any(given.values()):
            return None
        lacking = [name for name, path in given.items() if path is None]
        if lacking:
            raise InputError(f"TLS takes --tls-ca, --tls-cert and --tls-key together; add {', '.join(lacking)}")
        for name, path in given.items():
            if path is not None and not path.is_file():
                raise InputError(f"{name} names a PEM file, there is none at {path}; check the path")
        from distributed.security import Security

        names = {f"tls_{role}_cert": str(self.certificate), f"tls_{role}_key": str(self.key)}
        make: Any = Security
        return make(tls_ca_file=str(self.authority), require_encryption=True, **names)
