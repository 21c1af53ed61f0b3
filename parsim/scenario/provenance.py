"""Where a result came from and when: the catalogue, the code of the user's that ran, the version of Python, the date."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, date, datetime
from functools import cache
from hashlib import sha256
from sys import version_info
from typing import Any

from parsim.scenario.files import find, names

KINDS = ("devices", "models", "software", "topologies", "failures")


@cache
def catalogue_sha256() -> str:
    """One hash over all shipped devices, models, software profiles, topologies and lists of failures, by name and content."""
    digest = sha256()
    for kind in KINDS:
        for name in names(kind):
            digest.update(f"{kind}/{name}\n".encode())
            digest.update(find(kind, name).read_bytes())
    return digest.hexdigest()


def provenance(trusted_code: Iterable[str]) -> dict[str, Any]:
    """What a report says of its origins; `trusted_code` are the user's Python files that ran."""
    return {
        "catalogue_sha256": catalogue_sha256(),
        "trusted_code": list(dict.fromkeys(trusted_code)),
        "python": f"{version_info.major}.{version_info.minor}",
    }


def today() -> date:
    """The date in UTC."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "").strip()
    if fixed.isdecimal() and len(fixed) < 12:
        return datetime.fromtimestamp(int(fixed), tz=UTC).date()
    return datetime.now(tz=UTC).date()
