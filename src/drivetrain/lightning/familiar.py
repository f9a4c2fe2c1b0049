"""Names of drivetrain under the ones that people know, found when they are first used."""

from __future__ import annotations

import functools

from drivetrain.base import lazy_names

finder = functools.partial(lazy_names.finder, hint="; see docs/protocol.md")
