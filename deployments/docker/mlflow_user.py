"""Create an MLflow user or change its password: `mlflow_user.py NAME FILE_WITH_PASSWORD`.

Reads the server and the administrator's log-in from MLFLOW_TRACKING_URI, _USERNAME and _PASSWORD.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mlflow import MlflowException
from mlflow.server import get_app_client

name, file = sys.argv[1:]
password = Path(file).read_text(encoding="utf-8").strip()
client = get_app_client("basic-auth", tracking_uri=os.environ["MLFLOW_TRACKING_URI"])
try:
    client.get_user(name)
except MlflowException as error:
    if error.error_code != "RESOURCE_DOES_NOT_EXIST":
        raise
    client.create_user(name, password)
else:
    client.update_user_password(name, password)
