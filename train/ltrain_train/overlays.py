"""Packages in folders of their own, which a process lays over the main environment."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ltrain_instrument import settings
from ltrain_train.errors import BadRun


@dataclass(frozen=True, slots=True)
class Overlay:
    """Packages beside the main environment: an environment of `make`, or a folder of pip."""

    name: str
    """The name of the product in errors."""
    package: str
    """The package that is imported; the environment `.venv-PACKAGE` holds it."""
    setting: settings.Setting[Path | None]
    """The setting of the folder."""
    requirements: Sequence[str]
    """pip's requirements, which are all packages that the main environment lacks."""
    reason: str
    """The reason for a folder of its own, as a clause."""

    def find(self) -> Path:
        """Return the folder: that of the setting, by default of the environment of `make`.

        Raises:
            BadRun: when the package is not there.
        """
        named, beside = self.setting.read(), Path(sys.prefix).parent / f".venv-{self.package}"
        root = beside if self.setting.name not in os.environ and beside.is_dir() else named
        folders = () if root is None else (root, *sorted(root.glob("lib/python3.*/site-packages")))
        for folder in folders:
            if (folder / self.package / "__init__.py").is_file():
                return folder.absolute()
        raise BadRun(
            f"There is no {self.name} in '{root}'. It needs a folder of its own, {self.reason}: "
            f"make it with `make setup-{self.package}`, or `pip install --no-deps --target DIR "
            f"{' '.join(self.requirements)}`, and set {self.setting.name}=DIR."
        )

    def add(self) -> None:
        """Add the folder to this process's path, last, so that it replaces no other package.

        Raises:
            BadRun: when the package is not there.
        """
        folder = str(self.find())
        if folder not in sys.path:
            sys.path.append(folder)


TRL = Overlay(
    "TRL",
    "trl",
    settings.TRL,
    ("trl==1.16.0",),  # its trainer takes token ids by the method that `dpo_trainer` replaces
    "because verl does not start where TRL can be imported",
)
SKYRL_SDK = "0.25.0"
"""The Tinker SDK that a server of SkyRL 0.4.0 takes; later ones fail in sampling."""
OLD_SDK = "0.16.1"
"""The last SDK that asks a server for no configuration, as skyrl-tx 0.3.0 has none."""
TINKER_ENVIRONMENT = {"TINKER_TELEMETRY": "0", "TOKENIZERS_PARALLELISM": "false"}
"""Environment variables of a process with the SDK, which turn off its usage reports."""
TINKER = Overlay(
    "Tinker SDK",
    "tinker",
    settings.TINKER,
    (
        *("h2==4.4.1", "hpack==4.2.0", "hyperframe==6.1.0", "openai-harmony==0.0.8"),
        *("prime-pydantic-config==0.4.3", "pyqwest==0.12.0", "renderers==0.1.12"),
        f"tinker=={SKYRL_SDK}",
    ),
    "because only runs on a server of the Tinker API need it",
)
