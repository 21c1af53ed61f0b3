"""The published runs, read once for all tests that look at them: a thousand rows take seconds."""

from __future__ import annotations

from parsim.validation.published_runs import published

PUBLISHED = published()
