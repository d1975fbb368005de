"""`GlueTables`: the newest version of live tables in AWS Glue, for engines that find tables there.

A table of Glue has the URL of a metadata file, which moves by compare-and-swap (``VersionId``) and only to later versions.
"""

from __future__ import annotations

import threading
from typing import Any

from ..cold.object_store.options import ColdOptions
from ..errors import ColdStorageError, ConfigError
from .table_folder import version_of

_ATTEMPTS = 5
_KIND, _POINTER = "table_type", "metadata_location"
_OVERTAKEN = ("ConcurrentModificationException", "AlreadyExistsException", "VersionMismatchException")


class GlueTables:
    """The tables of one account and region. Thread-safe.

    Parameters
    ----------
    options
        Those of the bucket: its region and credentials are those of Glue, too.
    """

    def __init__(self, options: ColdOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._client: Any = None

    def point(self, database: str, name: str, location: str, metadata: str) -> None:
        """Make a table of Glue name a version, unless it names a later one.

        Parameters
        ----------
        location, metadata
            The URLs of the table and of the version.

        Raises
        ------
        ConfigError
            The database does not exist, or the table is another one.
        ColdStorageError
        """
        from botocore.exceptions import BotoCoreError, ClientError

        where = f"Glue table {database}.{name}"
        try:
            for _ in range(_ATTEMPTS):
                try:
                    self._point(database, name, location, metadata, where)
                    return
                except ClientError as error:
                    code = error.response.get("Error", {}).get("Code")
                    if code == "EntityNotFoundException":
                        raise ConfigError(f"{where}: Glue has no database {database}; create it") from None
                    if code not in _OVERTAKEN:
                        raise
        except (ClientError, BotoCoreError) as error:
            raise ColdStorageError(f"{where}: {error}", retryable=True) from None
        raise ColdStorageError(f"{where}: others changed it {_ATTEMPTS} times meanwhile", retryable=True)

    def _point(self, database: str, name: str, location: str, metadata: str, where: str) -> None:
        client = self._connected()
        try:
            present = client.get_table(DatabaseName=database, Name=name)["Table"]
        except client.exceptions.EntityNotFoundException:
            client.create_table(
                DatabaseName=database, TableInput=_table(name, location, {_POINTER: metadata})
            )
            return
        parameters = present.get("Parameters", {})
        before = parameters.get(_POINTER, "")
        if parameters.get(_KIND, "").upper() != "ICEBERG" or not before.startswith(f"{location}/"):
            raise ConfigError(f"{where} is another table: drop it, or choose another database")
        if version_of(before) >= version_of(metadata):
            return
        moved = {**parameters, _POINTER: metadata, f"previous_{_POINTER}": before}
        condition = {"VersionId": present["VersionId"]} if "VersionId" in present else {}
        client.update_table(
            DatabaseName=database, TableInput=_table(name, location, moved), SkipArchive=True, **condition
        )

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                import boto3

                options = self._options
                session = boto3.session.Session(
                    aws_access_key_id=options.access_key,
                    aws_secret_access_key=options.secret_key,
                    aws_session_token=options.session_token,
                    region_name=options.region,
                )
                self._client = session.client("glue")
            return self._client


def _table(name: str, location: str, parameters: dict[str, str]) -> dict[str, Any]:
    return {
        "Name": name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {_KIND: "ICEBERG", **parameters},
        "StorageDescriptor": {"Location": location},
    }
