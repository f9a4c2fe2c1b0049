"""The name of a checkpoint, from a pattern and the values of the moment."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from drivetrain.base.errors import ConfigError

DEFAULT_TEMPLATE = "{epoch}-{step}"
_FIELD = re.compile(r"\{([^}:]+)(:[^}]*)?\}")


def checkpoint_name(template: str, values: Mapping[str, Any], *, insert_names: bool = True) -> str:
    """Fill a pattern such as `"{epoch}-{val_loss:.2f}"`: `"epoch=3-val_loss=0.12"`.

    Args:
        template: Text with fields in braces.
        values: By name; `epoch` and `step` among them. One that is missing is shown as `nan`.
        insert_names: Write `name=` before each value.

    Raises:
        ConfigError: The format of a field does not fit its value.
    """

    def fill(match: re.Match[str]) -> str:
        name, form = match.group(1), match.group(2) or ""
        value = values.get(name, math.nan)
        value = value if isinstance(value, int) else float(value)
        try:
            text = format(value, form[1:])
        except ValueError as cause:
            raise ConfigError(
                f"filename={template!r} formats {name}={value!r} with {form!r}: {cause}.",
                code="checkpoint-name",
                do="Use a format of numbers, such as {val_loss:.2f} or {step:06d}.",
            ) from cause
        shown = name.replace("/", "_")
        return f"{shown}={text}" if insert_names else text

    return _FIELD.sub(fill, template)
