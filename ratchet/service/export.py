"""Export of a service's model as a complete folder, for tools without adapter support."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ratchet.errors import LanguageServiceError
from ratchet.language_models.local.network import save_merged
from ratchet.service.database import Database
from ratchet.service.models import find_stored_model
from ratchet.service.settings import ServiceSettings


def export_model(home: Path, model_id: str, folder: Path) -> None:
    """Write a model of a home's service, with its adapters merged, to a new folder.

    Atomic; the service may be running.
    """
    service = ServiceSettings(home=home)
    if not service.database_file.is_file():
        raise LanguageServiceError(f"{home} has no model service; set its home with --home.")
    if folder.exists():
        raise LanguageServiceError(f"{folder} already exists. Choose a new folder.")
    database = Database(service.database_file)
    try:
        model = find_stored_model(database, service.models_folder, model_id)
    finally:
        database.close()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".exporting-") as work:
        complete_model = Path(work) / "model"
        save_merged(model.complete_folder, model.adapters, complete_model)
        complete_model.rename(folder)
