"""Build steps: the wheel contains the examples, and its README has absolute links.

``ratchet new`` copies the examples, which are in ``flows``. Package indexes show the README.
"""

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SOURCE = "https://github.com/ratchet-experiments/ratchet"


def readme_with_absolute_links() -> str:
    """Return the README with links to files of the main branch."""
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1{SOURCE}/raw/main/", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\1{SOURCE}/blob/main/", text)


class BuildWithExamples(build_py):
    """Copies the examples next to the package's modules; an editable install uses the clone's."""

    def run(self) -> None:
        """Build the packages and add the examples."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "flows" / "examples"
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree("examples", target, ignore=ignored, dirs_exist_ok=True)


setup(
    cmdclass={"build_py": BuildWithExamples},
    long_description=readme_with_absolute_links(),
    long_description_content_type="text/markdown",
)
