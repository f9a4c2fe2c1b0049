"""A hook of mkdocs: fills the API page from the public names, so that it lists all of them and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

SRC = Path(__file__).resolve().parents[1] / "src"
MARK = "<!-- public names -->"


def public_names() -> dict[str, list[str]]:
    """The folder of each public name's module, and the full paths of the names in it, in their written order."""
    tree = ast.parse((SRC / "drivetrain" / "__init__.py").read_text(encoding="utf-8"))
    home = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_HOME"
    )
    paths: dict[str, str] = eval(compile(ast.Expression(home), "_HOME", "eval"))
    found: dict[str, list[str]] = {}
    for name, module in paths.items():
        file = SRC / f"{module.replace('.', '/')}.py"
        if file.is_file():
            found.setdefault(module.split(".")[1], []).append(f"{module}.{name}")
    return found


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put a section for each folder where the mark is."""
    if MARK not in markdown:
        return markdown
    sections = [
        f"## {folder}\n\n" + "\n\n".join(f"::: {path}" for path in paths) for folder, paths in public_names().items()
    ]
    return markdown.replace(MARK, "\n\n".join(sections))
