"""Which catalogue a result came from."""

from __future__ import annotations

from functools import cache
from hashlib import sha256

from parsim.scenario.files import find, names

KINDS = ("devices", "models", "software", "topologies")


@cache
def catalogue_sha256() -> str:
    """One hash over all shipped devices, models, software profiles and topologies, by name and content."""
    digest = sha256()
    for kind in KINDS:
        for name in names(kind):
            digest.update(f"{kind}/{name}\n".encode())
            digest.update(find(kind, name).read_bytes())
    return digest.hexdigest()
