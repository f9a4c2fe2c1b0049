"""A disk that is small, and can be made read-only."""

from tests.unit.checkpoint.conftest import small_disk as small_disk
