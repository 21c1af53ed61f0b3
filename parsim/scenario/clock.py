"""What day it is: of this machine, or SOURCE_DATE_EPOCH (reproducible-builds.org), so that reports can be made again."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime


def today() -> date:
    """The date in UTC."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "").strip()
    if fixed.isdecimal() and len(fixed) < 12:
        return datetime.fromtimestamp(int(fixed), tz=UTC).date()
    return datetime.now(tz=UTC).date()
