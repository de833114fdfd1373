"""The parts of an e-mail's body: greeting, own text, sign-off, signature, and what is quoted.

Quoted is what starts with `>`, what an attribution ("On …, Anna wrote:") or a forwarding mark introduces, and
everything from the header of an earlier message on. A signature follows the delimiter line `-- ` (RFC 3676,
section 4.3), or a sign-off, or is the last paragraph when that has a name and how to reach it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from rewardkit.rewards.email.greeting import Greeting, is_person, name_words, read_greeting
from rewardkit.rewards.email.mail import Unwrapped, unwrap
from rewardkit.rewards.email.words import (
    ABBREVIATIONS,
    FIELDS,
    PARTICLES,
    SIGN_OFFS,
    STREET_ENDINGS,
    STREETS,
    TITLES,
    WROTE,
    WROTE_ANYWHERE,
    WROTE_STARTS,
)
from rewardkit.types import BlameCompletion

_LINE = 300
_BLOCK = 15  # lines of a signature
_LAST = 200  # lines from the end in which a sign-off is looked for


@dataclass(frozen=True)
class Signature:
    """A signature block.

    Attributes:
        lines: Its lines, without the delimiter and the sign-off.
        name: Its first line when that is a name.
        contacts: The kinds of contact details in it: phone, e-mail, address, web.
        delimited: It follows the delimiter `-- `.
        says_more: A line is neither the name again nor several words all in lower case, as a sentence is.
    """

    lines: tuple[str, ...]
    name: str
    contacts: tuple[str, ...]
    delimited: bool
    says_more: bool


@dataclass(frozen=True)
class Mail:
    """An e-mail in its parts.

    Attributes:
        problem, reason: Why there is none; then everything else is empty.
        text: The e-mail as written.
        subject, to: From its header.
        body: The writer's own lines without the signature.
        quoted: The lines of others.
        greeting: None when the first line is none.
        sign_off: As written; "" when there is none.
        signature: None when there is none.
    """

    problem: str = ""
    reason: BlameCompletion = "no_answer"
    text: str = ""
    subject: str = ""
    to: tuple[tuple[str, str], ...] = ()
    body: tuple[str, ...] = ()
    quoted: tuple[str, ...] = ()
    greeting: Greeting | None = None
    sign_off: str = ""
    signature: Signature | None = None

    @property
    def words(self) -> int:
        """How many words the writer wrote: body and signature, without header and quotation."""
        own = [*self.body, *(self.signature.lines if self.signature else ())]
        return sum(len(line.split()) for line in own)


@lru_cache(maxsize=16)
def read_mail(text: str, opened: bool = False) -> Mail:
    """Return the e-mail in a completion. Linear in its length; a few are kept, as five rewards ask for each."""
    found = unwrap(text, opened=opened)
    if found.problem:
        return Mail(found.problem, found.reason)
    own, quoted = split_quoted(list(found.lines))
    while own and not own[-1].strip():
        own.pop()
    if not own:
        return Mail("it holds nothing but quoted text" if quoted else "the e-mail has no text", quoted=tuple(quoted))
    return _parts(found, own, quoted)


def _parts(found: Unwrapped, own: list[str], quoted: list[str]) -> Mail:
    first = next(at for at, line in enumerate(own) if line.strip())
    only_signature = _is_only_signature(own, first)
    start, sign_off, signature, end = find_signature(own, first if only_signature else first + 1)
    body = [*own[:start], *own[end:]]
    return Mail(
        text=found.text,
        subject=found.subject,
        to=found.to,
        body=tuple(body),
        quoted=tuple(quoted),
        greeting=None if only_signature else read_greeting(own[first]),
        sign_off=sign_off,
        signature=signature,
    )


# ---------------------------------------------------------------------------------------------------------- quotations

_START = re.compile(
    r"[ ]{0,3}(?:[*_]{0,2})(?:" + "|".join(sorted(WROTE_STARTS, key=len, reverse=True)) + r")\s", re.IGNORECASE
)
_VERB = re.compile(
    r"\b(?:" + "|".join(re.escape(verb) for verb in sorted(WROTE, key=len, reverse=True)) + r")"
    r"[^\n:：]{0,80}[:：][*_ ]{0,4}$",
    re.IGNORECASE,
)
_VERB_ANYWHERE = re.compile(r"(?:" + "|".join(WROTE_ANYWHERE) + r")[^\n:：]{0,40}[:：]\s{0,4}$")
_FORWARDED = re.compile(
    r"[ ]{0,3}(?:[-_*]{2,}\s?(?:original|forwarded|ursprüngliche|weitergeleitete|message d'origine|message transféré"
    r"|mensaje original|mensaje reenviado|mensagem original|messaggio originale|messaggio inoltrato|oorspronkelijk"
    r"|doorgestuurd|ursprungligt|oprindelig|пересылаемое|исходное|原始邮件|原始郵件|转发邮件)"
    r"|begin forwarded message\s?:|anfang der weitergeleiteten)",
    re.IGNORECASE,
)
_LABEL = re.compile(r"[ ]{0,3}[*_]{0,2}([^\W\d_][\w ]{0,20}?) ?[*_]{0,2} ?[:：]")


def split_quoted(lines: list[str]) -> tuple[list[str], list[str]]:
    """Return the writer's own lines and those that are quoted."""
    own: list[str] = []
    quoted: list[str] = []
    marked = [at for at, line in enumerate(lines) if line[:4].lstrip().startswith(">")]
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line or line.isspace():
            own.append(line)
            at += 1
            continue
        if line[:4].lstrip().startswith(">"):
            quoted.append(line)
            at += 1
            continue
        span = _attribution(lines, at)
        if span and _next_is_marked(lines, at + span):
            quoted += lines[at : at + span]
            at += span
            continue
        if (span and _dated(lines[at : at + span])) or _FORWARDED.match(line[:_LINE]) or _old_header(lines, at):
            return own, [*quoted, *lines[at:]]
        own.append(line)
        at += 1
    return (own, quoted) if marked else (lines, [])


def _attribution(lines: list[str], at: int) -> int:
    """Return how many lines an attribution spans that starts here; 0 when none does."""
    line = lines[at][:_LINE]
    if line.rstrip().endswith((":", "：")) and _VERB_ANYWHERE.search(line) and _dated([line]):
        return 1
    if _START.match(line) is None:
        return 0
    joined = ""
    for span, part in enumerate(lines[at : at + 3], 1):
        if not part.strip():
            return 0
        joined += " " + part[:_LINE].rstrip()
        if _VERB.search(joined):
            return span
    return 0


def _dated(lines: list[str]) -> bool:
    """Whether a date, a time or an address is in these lines, as an attribution has it."""
    return any(char.isdigit() or char == "@" for line in lines for char in line[:_LINE])


def _next_is_marked(lines: list[str], at: int) -> bool:
    following = next((line for line in lines[at : at + 3] if line.strip()), "")
    return following[:4].lstrip().startswith(">")


def _old_header(lines: list[str], at: int) -> bool:
    """Whether the header of an earlier message starts here: its sender, and two more fields below."""
    if _field(lines[at]) != "from":
        return False
    below = {_field(line) for line in lines[at + 1 : at + 7]}
    return len(below & {"to", "date", "subject", "cc"}) >= 2


def _field(line: str) -> str:
    match = _LABEL.match(line[:60])
    return FIELDS.get(match[1].casefold(), "") if match else ""


# ------------------------------------------------------------------------------------------------ sign-off, signature

_POSTSCRIPT = re.compile(r"\s*(?:p\.?\s?s\.?|p\.?p\.?s\.?|n\.?b\.?)(?:\W|$)", re.IGNORECASE)
_DEVICE = re.compile(
    r"\s*(?:sent from|get outlook|von meinem|gesendet mit|envoyé de|enviado desde|inviato da|verzonden vanaf)\b",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(
    r"\[[^\[\]]{1,60}\]|\{\{[^{}]{1,60}\}\}|<[^<>@/]{1,60}>|\bX{3,}\b|\byour (?:full )?name\b", re.IGNORECASE
)
_SMALL = frozenset({"of", "for", "and", "at", "the"})  # "Head of Support"
_RULER = re.compile(r"[\s\-_*=~–—.]*$")


_STEMS = frozenset(phrase.split()[0] for phrase in SIGN_OFFS) - {"a", "z", "s", "un", "con", "all", "have", "see"}


def find_signature(lines: list[str], first: int) -> tuple[int, str, Signature | None, int]:
    """Return where the signature starts and ends in the writer's own lines, the sign-off, and what it holds.

    Lines before `first` (the greeting) are no part of it. The sign-off line itself belongs to the body.
    """
    delimiter = next((at for at in range(len(lines) - 1, first - 1, -1) if lines[at].rstrip() == "--"), -1)
    if delimiter >= 0:
        block = [line for line in lines[delimiter + 1 :] if line.strip()]
        signature = _signature(block[:_BLOCK], delimited=True)
        if signature is not None:
            sign_off = _closing(lines, first, delimiter)
            return delimiter, sign_off, signature, len(lines)
    for at in range(len(lines) - 1, max(first, len(lines) - _LAST) - 1, -1):
        phrase, name = _sign_off(lines[at])
        if not phrase:
            continue
        end = _block_end(lines, at + 1)
        block = [*([name] if name else []), *(line for line in lines[at + 1 : end] if line.strip())]
        signature = _signature(block, delimited=False)
        if signature is not None or _only_postscript(lines, at + 1):
            return at + 1, phrase, signature, end
    start = _last_paragraph(lines, first)
    block = [line for line in lines[start:] if line.strip()]
    signature = _signature(block, delimited=False) if len(block) <= _BLOCK else None
    if signature is not None and signature.name and signature.contacts and not any(map(is_prose, block)):
        return start, "", signature, len(lines)
    return len(lines), "", None, len(lines)


def _is_only_signature(lines: list[str], first: int) -> bool:
    """Whether an e-mail is a sign-off, a name and lines of a signature, without a greeting and a body."""
    below = [line for line in lines[first + 1 :] if line.strip()]
    if not 2 <= len(below) <= _BLOCK or _sign_off(lines[first])[0].rstrip(",").casefold() not in SIGN_OFFS:
        return False
    signature = _signature(below, delimited=False)
    if signature is None or not signature.name or _block_end(lines, first + 1) != len(lines):
        return False
    return all(_is_position(line) or any(has(line) for has in _KINDS.values()) for line in signature.lines)


def _is_position(line: str) -> bool:
    """Whether a line is a name, a position or a company, not a short sentence ("Your refund is coming")."""
    return is_name(" ".join(word for word in line.split() if word not in _SMALL))


def _closing(lines: list[str], first: int, end: int) -> str:
    """Return the sign-off in the last lines before the delimiter."""
    for at in range(end - 1, max(first, end - 6) - 1, -1):
        phrase, _ = _sign_off(lines[at])
        if phrase:
            return phrase
    return ""


def _only_postscript(lines: list[str], at: int) -> bool:
    rest = next((line for line in lines[at:] if line.strip()), "")
    return not rest or bool(_POSTSCRIPT.match(rest[:20])) or bool(_PLACEHOLDER.search(rest[:_LINE]))


def _sign_off(line: str) -> tuple[str, str]:
    """Return the sign-off that a line is, and the name behind it on the same line; "" when it is none."""
    if not line or len(line) > 120:
        return "", ""
    text = line.strip(" \t*_")
    phrase = text.rstrip(",.!，。！–—- ").replace("’", "'").casefold()
    if phrase in SIGN_OFFS:
        return text, ""
    if text.endswith(",") and len(words := phrase.split()) <= 6 and words and words[0] in _STEMS:
        return text, ""  # "Thanks for understanding,", "Warmly yours,"
    head, comma, tail = text.partition(",")
    if comma and head.replace("’", "'").casefold() in SIGN_OFFS and is_name(tail):
        return f"{head},", tail.strip()
    return "", ""


def _block_end(lines: list[str], start: int) -> int:
    """Return where a signature that starts here ends: at prose, a postscript, or after `_BLOCK` lines."""
    seen = 0
    for at in range(start, len(lines)):
        line = lines[at]
        if not line.strip():
            continue
        if _POSTSCRIPT.match(line[:20]) or is_prose(line) or seen == _BLOCK:
            return at
        seen += 1
    return len(lines)


def _last_paragraph(lines: list[str], first: int) -> int:
    at = len(lines)
    while at > first and lines[at - 1].strip() and len(lines) - at <= _BLOCK:
        at -= 1
    return at


def _signature(block: list[str], *, delimited: bool) -> Signature | None:
    """Return the signature in these lines, or None when nothing of one is there."""
    segments = [segment for line in block for segment in _segments(line)]
    if not segments:
        return None
    name = segments[0].strip(" \t*_—–-") if is_name(segments[0].strip(" \t*_—–-")) else ""
    contacts = tuple(kind for kind in _KINDS if any(_KINDS[kind](segment) for segment in segments))
    if not delimited and not name and not contacts:
        return None
    says_more = any(not _says_nothing(segment, name) for segment in segments[1:])
    return Signature(tuple(segments), name, contacts, delimited, says_more)


def _says_nothing(segment: str, name: str) -> bool:
    """Whether a line below a name is that name again, or words in lower case ("please call")."""
    if segment[:1].isalpha() and segment.islower() and len(segment.split()) > 1:
        return True
    return is_name(segment) and is_person(name_words(name), name_words(segment))


def _segments(line: str) -> list[str]:
    """Return the pieces of a signature's line ("Tom Fisher | Support | +1 …") that say something."""
    if len(line) > _LINE or _RULER.match(line) or _DEVICE.match(line):
        return []
    return [
        piece.strip(" \t*_")
        for piece in re.split(r"[|•·]", line)
        if piece.strip(" \t*_") and not _PLACEHOLDER.search(piece)
    ]


def is_prose(line: str) -> bool:
    """Whether a line is a sentence rather than a name, a position or an address."""
    text = line.strip(" \t*_")
    words = text.split()
    if len(words) > 12 or len(text) > 120:
        return not re.search(r"[|•·]", text[:_LINE]) or len(text) > _LINE
    small = sum(word.strip(",;()").islower() for word in words)
    if len(words) >= 6 and small >= 0.6 * len(words):
        return True
    if not text.endswith((".", "!", "?", ":", "。", "！", "？")):
        return False
    last = words[-1].rstrip(".!?:。！？").casefold()
    return last not in ABBREVIATIONS and not (len(last) == 1 and last.isalpha())


def is_name(line: str) -> bool:
    """Whether a line is a name: one to six words that start with a capital, or particles, initials and titles."""
    text = re.sub(r"\((?:she|he|they)/[^()]{1,20}\)$", "", line.strip(" \t*_,")).strip()
    if not 1 < len(text) <= 60 or any(char.isdigit() or char in "@:/\\=<>{}[]!?;" for char in text):
        return False
    words = text.replace(",", " ").split()
    if not 1 <= len(words) <= 6:
        return False
    capital = False
    for word in words:
        bare = word.strip(".'’\"“”()&-–").casefold()
        if not bare or bare in PARTICLES or bare in TITLES:
            continue
        if not word.lstrip("'’\"“(")[:1].isalpha() or word.lstrip("'’\"“(")[:1].islower():
            return False
        if word.endswith(".") and len(bare) > 3 and bare not in ABBREVIATIONS:
            return False
        capital = True
    return capital


# ---------------------------------------------------------------------------------------------------- contact details

_MAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}")
_WEB = re.compile(r"\b(?:https?://|www\.)[\w-]{1,63}\.[\w-]", re.IGNORECASE)
_PHONE = re.compile(r"(?:\+|\b|(?<!\w)\()\d[\d ().\-/‐–]{5,24}\d\b")
_CALLED = re.compile(
    r"(?:^|[\s(])(?:tel|telephone|telefon|téléphone|tél|teléfono|telefone|telefono|phone|mobile|mobil|móvil|cell|handy"
    r"|fax|direct|office|call|t|m|p|ph|☎|📞|📱|тел|电话|電話|전화)\s?[.:：]",
    re.IGNORECASE,
)
_DATE = re.compile(r"\b(?:\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}[-./]\d{1,2}[-./]\d{2,4})\b")
_POSTCODE = re.compile(
    r"\b[A-Z]{2},? \d{5}(?:-\d{4})?\b|\b[A-Z]{1,2}\d[A-Z\d]? ?\d[A-Z]{2}\b|\b[A-Z]\d[A-Z] \d[A-Z]\d\b"
    r"|^\W{0,3}(?:[A-Z]{1,2}-)?\d{4,5}(?: [A-Z]{2})? [^\W\d_]{2,}|〒"
)
_PO_BOX = re.compile(r"\b(?:p\.? ?o\.? box|postfach|boîte postale|apartado|casella postale|postbus)\b", re.IGNORECASE)


def has_phone(line: str) -> bool:
    """Whether a line holds a telephone number: 7 to 15 digits, and a `+`, a separator or a label. A date is none."""
    text = _DATE.sub(" ", line[:_LINE])
    called = _CALLED.search(text) is not None
    for match in _PHONE.finditer(text):
        digits = sum(map(str.isdigit, match[0]))
        formed = match[0].startswith(("+", "(")) or any(char in match[0] for char in " -./()‐–")
        if 7 <= digits <= 15 and (called or (formed and not re.search(r"[#№]\s?$", text[: match.start()]))):
            return True
    return False


def has_address(line: str) -> bool:
    """Whether a line holds a part of a postal address: a street with a number, a post code, a post office box."""
    text = line[:_LINE]
    if _PO_BOX.search(text) or _POSTCODE.search(text):
        return True
    if not any(map(str.isdigit, text)):
        return False
    words = [word.strip(".,;()").casefold() for word in text.split()]
    street = any(word in STREETS or word.endswith(STREET_ENDINGS) for word in words)
    return (street and len(words) > 1) or any(char in text for char in "路街号丁目番地")


_KINDS: dict[str, Callable[[str], bool]] = {
    "phone": has_phone,
    "e-mail": lambda line: _MAIL.search(line[:_LINE]) is not None,
    "address": has_address,
    "web": lambda line: _WEB.search(line[:_LINE]) is not None,
}
