"""A real Hermes gateway in a home of its own, whose Telegram, if any, and model are stand-ins."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Any

from hermes_bridges.core import files
from hermes_bridges.standins.model_api import CONTEXT, MODEL
from hermes_bridges.standins.telegram_api import TelegramApi

USER = 123
"""The Telegram user who may talk to the bots."""
STOP_SECONDS = 8.0


class HermesHome:
    """A HOME with a Hermes home in it. ``hermes`` is the path of the real command.

    ``certificate`` is the file by which ``hermes send`` trusts the stand-in for Telegram.
    Without a Telegram it can neither send nor be written to by a person.
    """

    def __init__(
        self,
        home: str,
        hermes: str,
        telegram: TelegramApi | None,
        model_url: str,
        certificate: str,
        inherited: Mapping[str, str],
    ) -> None:
        self.home = home
        self.root = os.path.join(home, ".hermes")
        self._telegram = telegram
        self._model_url = model_url
        self._gateways: list[subprocess.Popen[bytes]] = []
        # Nothing of the caller's Hermes, keys or proxies gets in.
        self.environ = {
            **inherited,
            "PATH": f"{os.path.dirname(hermes)}:/usr/local/bin:/usr/bin:/bin",
            "HOME": home,
            "HERMES_HOME": self.root,
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "PYTHONUNBUFFERED": "1",
            "HERMES_DISABLE_LAZY_INSTALLS": "1",
            # Below a test runner it would take this home for that of a person.
            "HERMES_STATE_DB_GUARD_BYPASS": "1",
        }
        # `hermes send` has no base URL; a gateway has one, and must not be sent to the proxy.
        self.sending = dict(self.environ)
        if telegram is not None:
            self.sending["TELEGRAM_PROXY"] = telegram.proxy or ""
            self.sending["SSL_CERT_FILE"] = certificate

    def path(self, profile: str) -> str:
        """Where a profile's own files lie."""
        return self.root if profile == "default" else os.path.join(self.root, "profiles", profile)

    def write(
        self,
        profile: str,
        token: str = "",
        *,
        variables: Mapping[str, object] = {},
        **more: Mapping[str, object],
    ) -> None:
        """Settings of a profile, whose Telegram bot has this token.

        ``variables`` are more lines of its ``.env``, ``more`` are sections of its config.
        """
        place = self.path(profile)
        for directory in (place, *([] if profile == "default" else [os.path.join(place, "home")])):
            os.makedirs(directory, mode=0o700, exist_ok=True)
        config: dict[str, Any] = {
            "model": {
                "default": MODEL,
                "provider": "custom",
                "base_url": self._model_url,
                "api_key": "standin",
                "context_length": CONTEXT,
            },
            # Newer versions would otherwise ask a model about commands.
            "approvals": {"mode": "manual"},
            "agent": {"auto_recovery_cycles": 0, "api_max_retries": 1},
        }
        if self._telegram is not None:
            extra = {
                "base_url": self._telegram.base_url,
                "base_file_url": self._telegram.file_url,
                "disable_fallback_ips": True,
            }
            config["platforms"] = {"telegram": {"enabled": True, "extra": extra}}
            variables = {
                "TELEGRAM_BOT_TOKEN": token,
                "TELEGRAM_ALLOWED_USERS": str(USER),
                "TELEGRAM_HOME_CHANNEL": str(USER),
                **variables,
            }
        # JSON is YAML.
        text = json.dumps(config | more)
        files.write_atomic(os.path.join(place, "config.yaml"), text.encode())
        text = "".join(f"{name}={value}\n" for name, value in variables.items())
        files.write_atomic(os.path.join(place, ".env"), text.encode())

    def start(self, profile: str = "default") -> "subprocess.Popen[bytes]":
        """Start ``hermes gateway run`` of a profile; what it prints goes to a file in the home."""
        words = [] if profile == "default" else ["--profile", profile]
        log = os.open(
            os.path.join(self.home, f"gateway-{profile}.txt"),
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )
        try:
            gateway = subprocess.Popen(
                ["hermes", *words, "gateway", "run"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environ,
                cwd=self.home,
                start_new_session=True,
            )
        finally:
            os.close(log)
        self._gateways.append(gateway)
        return gateway

    def last_words(self, profile: str = "default", lines: int = 20) -> str:
        """The end of what the gateways of a profile printed."""
        with open(os.path.join(self.home, f"gateway-{profile}.txt"), errors="replace") as file:
            return "\n".join(file.read().splitlines()[-lines:])

    def close(self) -> None:
        """End the gateways, by their process groups."""
        for gateway in self._gateways:
            if gateway.poll() is None:
                os.killpg(gateway.pid, signal.SIGTERM)
        for gateway in self._gateways:
            try:
                gateway.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(gateway.pid, signal.SIGKILL)
                gateway.wait()
