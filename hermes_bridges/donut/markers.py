"""Words in an answer that are meant for programs: control markers and end tokens (section 3.7)."""

import re

_END_TOKEN = (
    r"<[|｜]/?(?:eos|eot|eot_id|eom|eom_id|eod|end|endoftext|end_of_text|im_end|end_of_turn|endofturn"
    r"|end_of_turn_token|end_of_message|end▁of▁sentence|end_of_sentence|return)[|｜]>"
    r"|<(?:eos|end_of_turn)>|</s>"
)
_LONGEST_TOKEN = 32
_LONGEST_SILENCE = 1000  # characters
# Not the signs that say something by themselves, such as an emoji.
_PUNCTUATION = (
    r"[\s!-/:-@\[-`{-~\xa1-\xbf\u2000-\u206f\u3000-\u303f\uff01-\uff0f\uff1a-\uff20\ufeff]"
)
_SILENT = re.compile(
    r"(?=.*(?:SILENT|NO\\?_REPLY))"
    rf"(?:{_PUNCTUATION}*(?:{_END_TOKEN}|\[\s*SILENT\s*\\?\]|NO\\?_REPLY))+{_PUNCTUATION}*",
    re.IGNORECASE | re.DOTALL,
)
_ENDS_IN_TOKEN = re.compile(rf".*({_END_TOKEN})\Z", re.IGNORECASE | re.DOTALL)


def is_silent(answer: str) -> bool:
    """Tell whether an answer consists of control markers only, and so asks to post nothing."""
    answer = answer.strip()
    return len(answer) <= _LONGEST_SILENCE and _SILENT.fullmatch(answer) is not None


def without_end_tokens(answer: str) -> str:
    """Return ``answer`` without white space at both ends, and without end tokens at its end.

    ``</s>`` stays where it may close a ``<s>``.
    """
    struck = "<s>" in answer
    end = len(answer)
    while end > 0:
        if answer[end - 1].isspace():
            end -= 1
            continue
        token = _ENDS_IN_TOKEN.match(answer, max(0, end - _LONGEST_TOKEN), end)
        if not token or (struck and token[1].lower() == "</s>"):
            break
        end = token.start(1)
    return answer[:end].lstrip()
