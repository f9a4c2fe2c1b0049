"""Whether somebody looks at what torch records."""

from __future__ import annotations

from collections.abc import Callable

import torch

# A profiler of torch runs. Where a torch of the future has another name for it, always: then all calls are torch's own.
is_recorded: Callable[[], bool] = getattr(torch._C._autograd, "_profiler_enabled", lambda: True)
