"""Former name of :mod:`trainers.pyfunc_models`, by which models logged to MLflow refer to it."""

from trainers.pyfunc_models import _load_pyfunc as _load_pyfunc
