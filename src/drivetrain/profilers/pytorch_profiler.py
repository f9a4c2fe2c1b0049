"""What operators and kernels take, as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from drivetrain.profilers.profiler import Profiler


class PyTorchProfiler(Profiler):
    """Runs `torch.profiler` over a few windows, and writes a trace for chrome://tracing or Perfetto.

    Windows are its steps. By default one is skipped, one warms up and three are recorded, once.

    Args:
        dirpath: Where the files go; by default to the directory of the first logger.
        filename: Of trace and summary, without their endings; without a name the summary is printed.
        export_to_chrome: Write the trace `<filename>.pt.trace.json`.
        row_limit: Rows of the summary; -1 for all.
        sort_by_key: What they are sorted by; by default the time of the device.
        group_by_input_shapes: A row for each shape of inputs.
        profiler_options: Arguments of `torch.profiler.profile`, such as `schedule`, `activities`, `with_stack`.
    """

    def __init__(
        self,
        dirpath: str | Path | None = None,
        filename: str | None = None,
        export_to_chrome: bool = True,
        row_limit: int = 20,
        sort_by_key: str | None = None,
        group_by_input_shapes: bool = False,
        **profiler_options: Any,
    ) -> None:
        super().__init__(dirpath, filename)
        self.export_to_chrome = export_to_chrome
        self.row_limit, self.sort_by_key = row_limit, sort_by_key
        self.group_by_input_shapes = group_by_input_shapes
        self._options = {"record_shapes": group_by_input_shapes, **profiler_options}
        self._profile: Any = None
        self._spans: list[Any] = []
        self._table = ""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_profile": None, "_spans": []}

    def begin(self, directory: str | Path, *, rank: int, num_ranks: int) -> None:
        """See `Profiler.begin`."""
        super().begin(directory, rank=rank, num_ranks=num_ranks)
        options = dict(self._options)
        options.setdefault("schedule", torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1))
        options.setdefault("on_trace_ready", self._keep)
        self._profile = torch.profiler.profile(**options)
        self._profile.start()

    def _keep(self, profile: Any) -> None:
        key = self.sort_by_key
        if key is None:
            is_on_gpu = torch.profiler.ProfilerActivity.CUDA in profile.activities and torch.cuda.is_available()
            key = "self_cuda_time_total" if is_on_gpu else "self_cpu_time_total"
        averages = profile.key_averages(group_by_input_shape=self.group_by_input_shapes)
        self._table = averages.table(sort_by=key, row_limit=self.row_limit)
        if self.export_to_chrome:
            profile.export_chrome_trace(str(self.path(".pt.trace.json")))

    def start(self, action_name: str) -> None:
        """See `Profiler.start`: the action is a span of the trace."""
        if self._profile is not None:
            span = torch.profiler.record_function(f"[drivetrain] {action_name}")
            span.__enter__()
            self._spans.append(span)

    def stop(self, action_name: str) -> None:
        """See `Profiler.stop`."""
        if self._spans:
            self._spans.pop().__exit__(None, None, None)

    def step(self) -> None:
        """See `Profiler.step`."""
        if self._profile is not None:
            self._profile.step()

    def end(self) -> None:
        """See `Profiler.end`; a run that was shorter than the schedule has a shorter trace, or none."""
        while self._spans:
            self._spans.pop().__exit__(None, None, None)
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def summary(self) -> str:
        """The table of operators."""
        return self._table
