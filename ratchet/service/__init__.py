"""The embedded model service: OpenAI's API for chat and fine-tuning, on this machine.

Other packages import only the names below, on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.lazy import export_lazily

if TYPE_CHECKING:
    from ratchet.service.export import export_model as export_model
    from ratchet.service.launch import EmbeddedService as EmbeddedService
    from ratchet.service.launch import service_command as service_command

export_lazily(__name__)
