"""A stub of an interpreter with inspect-ai."""

from __future__ import annotations

import sys
from pathlib import Path

LOG = Path(__file__).with_name("log_0.3.285.json")
VERSIONS = {"inspect-ai": "0.3.285", "openai": "3.52.0"}
_PROGRAM = """\
#!{python}
import json, os, shutil, sys, time
from pathlib import Path
if sys.argv[1] == "-c":
    versions = {versions!r}
    print(json.dumps({{name: versions.get(name) for name in sys.argv[3:]}}))
    sys.exit()
asked = json.loads(Path(sys.argv[2]).read_text())
Path({notes!r}).write_text(json.dumps([asked, dict(os.environ), os.getpid()]))
{does}
Path(asked["log_dir"]).mkdir()
shutil.copy({log!r}, asked["log_dir"])
"""


def fake_inspect(folder: Path, *, does: str = "", log: Path = LOG, **versions: str | None) -> Path:
    """Write the program; its request, its environment and its id are in ``notes.json``."""
    file = folder / "python"
    text = _PROGRAM.format(
        python=sys.executable,
        versions={**VERSIONS, **{name.replace("_", "-"): v for name, v in versions.items()}},
        notes=str(folder / "notes.json"),
        does=does,
        log=str(log),
    )
    file.write_text(text)
    file.chmod(0o755)
    return file
