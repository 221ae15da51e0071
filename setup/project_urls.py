"""The URLs in the metadata of a release: those of the repository that it is built in.

`make dist PROJECT_URL=https://github.com/OWNER/ltrain` sets them. Other builds have none, so that a
fork's package does not lead to another repository.
"""

import os
from typing import Any
from urllib.parse import urlsplit

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = {
    "Homepage": "",
    "Documentation": "/blob/v{version}/docs/README.md",
    "Changelog": "/blob/v{version}/CHANGELOG.md",
    "Issues": "/issues",
}


class ProjectUrls(MetadataHookInterface):
    """Sets `urls` of the metadata from the variable PROJECT_URL."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the URLs.

        Raises:
            ValueError: PROJECT_URL is not the https address of a repository.
        """
        base = os.environ.get("PROJECT_URL", "").rstrip("/")
        url = urlsplit(base)
        if base and (url.scheme != "https" or not url.path or "@" in url.netloc or url.query):
            raise ValueError(
                f"PROJECT_URL is '{base}'. Set it to the https address of the repository, without "
                "a user, such as https://github.com/OWNER/ltrain."
            )
        pages = PAGES if base else {}
        version = metadata["version"]
        metadata["urls"] = {
            name: base + page.format(version=version) for name, page in pages.items()
        }
