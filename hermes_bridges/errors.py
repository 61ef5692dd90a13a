"""The exceptions of the package: one family, told apart by what the caller can do about them."""

from collections.abc import Iterable


class BridgeError(Exception):
    """Anything that this package raises on purpose."""


class ConfigError(BridgeError):
    """Settings that cannot be used; ``faults`` holds one sentence for each of them."""

    def __init__(self, faults: str | Iterable[str]) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        super().__init__("\n".join(self.faults))


class FileRefused(BridgeError):
    """A file that must not be read.

    ``reason`` is ``symlink``, ``not_regular``, ``foreign_owner`` or ``too_large``.
    """

    def __init__(self, reason: str, path: str) -> None:
        self.reason = reason
        super().__init__(f"{path}: {reason.replace('_', ' ')}")
