"""The small models of tests of local models and of the service."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "service"))

from tests.language_models.local.conftest import folder, plain, transformers_model

__all__ = ["folder", "plain", "transformers_model"]
