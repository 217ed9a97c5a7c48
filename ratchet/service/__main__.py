"""``python -m ratchet.service OPTIONS``: serve models, with options in JSON.

``ratchet llm serve`` and runs with embedded models execute it.
"""

from __future__ import annotations

import logging
import os
import sys

from ratchet.errors import RatchetError
from ratchet.language_models.endpoints import EMBEDDED_PACKAGES
from ratchet.lazy import require_packages
from ratchet.service.settings import ServiceSettings


def main() -> int:
    """Serve; return the exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    try:
        settings = ServiceSettings.from_json(sys.argv[1])
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # more threads contend; see --threads
            os.environ.setdefault(name, str(settings.threads))
        require_packages(EMBEDDED_PACKAGES, "The model service")
        from ratchet.service.serving import serve

        serve(settings)
    except KeyboardInterrupt:  # before the server listened
        return 130
    except RatchetError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
