"""A backend of `torch.compile` that counts the graphs that it is given."""

from __future__ import annotations

from typing import Any

import torch

GRAPHS: list[int] = []  # nodes of each graph


def counted(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    """The backend: it runs the graph as it is."""
    GRAPHS.append(len(list(graph.graph.nodes)))
    return graph.forward
