"""Making a peer's text safe to show to the human through ``hermes send`` (contract section 5)."""

import re

from hermes_bridges.core.clusters import clean_text

_NEWLINE = re.compile(r"\r\n?")
# C0 without tab and newline, DEL, C1.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ZWJ = "\u200d"
# Attachments are found by this expression in Hermes; ignoring case, I also stands for two more
# letters of Turkish. The other markers make media a voice note or a file, and name a question.
_MARKER = re.compile(rf"(MEDIA:|HUB-Q:|\[\[(?=(?:as_document|audio_as_voice)\]\]))(?!{_ZWJ})", re.I)


def harmless(text: str) -> str:
    """Return ``text`` with its markers disarmed and no control characters but newline and tab.

    A zero-width joiner is put into everything that Hermes or its hub-liaison skill would take for
    an instruction. Lone surrogates become U+FFFD. The result may be longer than ``text``.
    """
    text = _CONTROLS.sub("", _NEWLINE.sub("\n", clean_text(text)))
    # Controls go first: they could hide a marker that their removal would complete.
    return _MARKER.sub(rf"\1{_ZWJ}", text)
