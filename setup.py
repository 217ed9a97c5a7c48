"""Build step: the wheel contains the examples, which ``ratchet new`` copies, in ``flows``."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithExamples(build_py):
    """Copies the examples next to the package's modules; an editable install uses the clone's."""

    def run(self) -> None:
        """Build the packages and add the examples."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "flows" / "examples"
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree("examples", target, ignore=ignored, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithExamples})
