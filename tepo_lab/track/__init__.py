"""The MLflow mirror of the records on disk, and the command that shows it. The only place that imports mlflow.

The records are the truth (`tepo_lab.records.files`); all that MLflow shows can be made again from them. Importing this
package is light: it sets the environment of mlflow before anything here imports it.
"""

from __future__ import annotations

import os

#: Environment of every process that loads mlflow: no telemetry, no chatter, failures at once (the mirror has its own
#: waits), and no connection left open, so that a database that was deleted is noticed.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool",
}

for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
