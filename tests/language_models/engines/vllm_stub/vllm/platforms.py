"""The stand-in's platform."""

import os
from types import SimpleNamespace

current_platform = SimpleNamespace(is_sleep_mode_available=lambda: "STUB_SLEEPS" in os.environ)
