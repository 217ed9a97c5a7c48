"""Mirror runs to CSV files, as an example of a custom mirror.

Run it:  python examples/custom_mirror.py
Use it:  ratchet run FILE 'settings.mirrors=[mlflow, custom_mirror.py:CsvMirror]'
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
from pathlib import Path

from ratchet.errors import TrackingError
from ratchet.tracking import RunFolder, RunManifest
from ratchet.tracking.files import write_atomically
from ratchet.tracking.mirrors.base import Mirror


class CsvMirror(Mirror):
    """Mirror that writes a run's metrics to ``FOLDER/RUN.csv``; ``CSV_FOLDER`` sets the folder."""

    title = "CSV"
    live = True  # sync during the run, not only at its end

    @classmethod
    def choose_place(cls, tracking_uri: str) -> str:
        """Return the folder of the files."""
        return os.environ.get("CSV_FOLDER", "metrics")

    def sync(self, folder: RunFolder) -> str:
        """Rewrite the run's file, so that repeated calls write each value once."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(("arm", "stage", "iteration", "metric", "value"))
        for point in folder.read_metrics():
            for name, value in point.values.items():
                rows.writerow((point.arm, point.stage, point.iteration, name, value))
        path = Path(self.place) / f"{folder.run_id}.csv"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.getvalue())
        except OSError as error:
            raise TrackingError(f"CSV mirror: {path} cannot be written: {error}.") from error
        return str(path)


def main() -> str:
    """Mirror a small run twice, and print its file."""
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder.create(name, RunManifest(run_id="demo", name="demo", arms={"main": {}}))
        mirror = CsvMirror(f"{name}/metrics")
        for iteration in range(2):
            folder.append_metrics("train", iteration, {"loss": 0.5 / (iteration + 1)})
            path = mirror.sync(folder)
        text = Path(path).read_text(encoding="utf-8")
    print(text, end="")
    return text


if __name__ == "__main__":
    main()
