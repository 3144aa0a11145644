"""docs/reference/configuration.md, written from the tables: `python -m jupyter_gpushare.settings.document`."""

from __future__ import annotations

import re

from .quota import QUOTA
from .setting import Setting
from .table import SETTINGS

_HEAD = """\
# Configuration

<!-- Generated from jupyter_gpushare/settings/: `make configuration` writes this file. -->

Admins set `c.GpuShare.NAME` in `jupyter_gpushare_config.py` or `jupyter_server_config.py`, or pass
`--GpuShare.NAME=VALUE` to `jupyter gpushare coordinator`.
The *live* settings of a running coordinator are changed by `jupyter gpushare config NAME VALUE`, in JupyterLab's panel,
or by `PATCH /gpushare/api/config`; such changes last until the coordinator ends.

Times are seconds, or texts such as `"30s"`, `"5min"` and `"1h"`. Sizes are bytes, or texts such as `"8GiB"` (1024s) and
`"8GB"` (1000s). Fractions are numbers, or texts such as `"50%"`.
"""

_QUOTA = """
## Quotas

A quota is a text such as `share=0.5 memory=8GiB`: of a kernel, a program (`GPUSHARE_QUOTA`) or a running client, and of
`default_quota`. `class` is another name of `service`.
"""


def document() -> str:
    """The text of docs/reference/configuration.md."""
    return f"{_HEAD}\n## Settings\n\n{_rows(SETTINGS)}{_QUOTA}\n{_rows(QUOTA)}"


def _rows(table: dict[str, Setting]) -> str:
    rows = ["| name | default | allowed | live | meaning |", "| --- | --- | --- | --- | --- |"]
    for name, setting in table.items():
        choices = "<br>".join(f"`{word}`: {meaning}" for word, meaning in setting.choices.items())
        allowed = choices or setting.allowed or setting.type
        default = "none" if setting.default is None else f"`{setting.default!r}`"
        cells = [f"`{name}`", default, allowed, "yes" if setting.live else "no", f"{setting.help} {setting.more}"]
        rows.append("| " + " | ".join(cell.strip().replace("|", "\\|") for cell in cells) + " |")
    return re.sub(r"\bdocs/(\S+/(\w+\.md))\b", r"[\2](../\1)", "\n".join(rows)) + "\n"


if __name__ == "__main__":
    print(document(), end="")
