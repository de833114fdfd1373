"""A model's text -> the e-mail in it: taken out of its wrapping, header fields decoded, HTML and MIME parts as lines.

A completion is seldom only an e-mail. Thinking, "Here is your reply:", a fenced block and a closing offer stand around
it; there may be a header in front, or a whole MIME message. `unwrap` takes these away. What is left is split
into its parts by `layout.py`. Header fields, encoded words, addresses and MIME parts are read by the standard library's
`email`; its slow paths are kept out by limits. `html.parser` is not used, as it takes quadratic time on open tags.
"""

from __future__ import annotations

import email
import email.errors
import email.header
import email.message
import email.utils
import html
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from rewardkit.extract import after_thinking, tagged
from rewardkit.rewards.email.greeting import read_greeting
from rewardkit.rewards.email.words import FIELDS
from rewardkit.types import BlameCompletion

MAX_SIZE = 100_000  # characters that are read as an e-mail
_LINE = 300  # characters of a line that are looked at for what it is
_FIELD = 2000  # characters of a header field that are decoded
_MIME_PARTS = 20  # boundaries above which a message is not taken apart


@dataclass(frozen=True)
class Unwrapped:
    """An e-mail out of its wrapping.

    Attributes:
        text: The e-mail as written, header and all, after `tidy`.
        lines: Its body.
        subject: "" where there is none.
        to: Display name and address of each recipient in the `To` field.
        problem, reason: Why there is no e-mail; "" when there is one.
    """

    text: str = ""
    lines: tuple[str, ...] = ()
    subject: str = ""
    to: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    reason: BlameCompletion = "no_answer"


# Invisible characters, and those that change the direction of text. Joiners (U+200C and D) are part of words.
_INVISIBLE = [(0, 8), (0xB, 0xC), (0xE, 0x1F), (0x7F, 0x7F), (0xAD, 0xAD), (0x200B, 0x200B), (0x200E, 0x200F)]
_INVISIBLE += [(0x202A, 0x202E), (0x2060, 0x2064), (0x2066, 0x2069), (0xFEFF, 0xFEFF)]
_DROPPED = dict.fromkeys(code for first, last in _INVISIBLE for code in range(first, last + 1))


def tidy(text: str) -> str:
    """Return the text with line ends as `\\n`, composed Unicode (NFC), and nothing invisible but white space."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        text = unicodedata.normalize("NFC", text).replace("\u2028", "\n").replace("\u2029", "\n").replace("\xa0", " ")
    return text.translate(_DROPPED) if not text.isprintable() else text


def unwrap(text: str, *, opened: bool = False) -> Unwrapped:
    """Return the e-mail in a completion. `opened`: the prompt has already opened `<think>`."""
    if not text.strip():
        return Unwrapped(problem="the completion is empty")
    reply = after_thinking(text, opened=opened)
    if reply is None:
        return Unwrapped(problem="the thinking is never closed")
    if len(reply) > MAX_SIZE:
        return Unwrapped(problem=f"{len(reply):,} characters are no e-mail", reason="too_large")
    reply = tidy(reply)
    for tag in ("answer", "email"):
        found = tagged(reply, tag)
        reply = found.text if found is not None else reply
    lines = _between_rules(_without_lead_in(_out_of_fence(reply.split("\n"))))
    whole = "\n".join(lines).strip()
    if not whole:
        return Unwrapped(problem="the completion holds no e-mail")
    fields, at = _header(lines)
    body = _mime(fields, lines[at:]) if at else None
    if body is None:
        body = "\n".join(lines[at:])
    if _MARKUP.search(body):
        body = from_html(body)
    to = _addresses(fields.get("to", ""))
    return Unwrapped(whole, tuple(tidy(body).split("\n")), _decoded(fields.get("subject", "")), to)


# --------------------------------------------------------------------------------------------- what stands around it

_FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})[ \t]*([\w+-]{0,20})[ \t]*$")
_MAIL_LANGUAGES = ("email", "e-mail", "eml", "mail", "rfc822", "mime")
_TEXT_LANGUAGES = (*_MAIL_LANGUAGES, "", "text", "txt", "plaintext", "plain", "markdown", "md", "html")


def _out_of_fence(lines: list[str]) -> list[str]:
    """Return the inside of the last fenced block that holds an e-mail; all lines when none does.

    A block in the midst of an e-mail (a command to run, a log) holds none.
    """
    found: list[str] | None = None
    start, mark, language = -1, "", ""
    for at, line in enumerate(lines):
        fence = _FENCE.match(line[:_LINE]) if "```" in line[:8] or "~~~" in line[:8] else None
        if fence is None:
            continue
        if start < 0:
            start, mark, language = at, fence[1], fence[2].lower()
        elif fence[1].startswith(mark) and not fence[2]:
            if _is_mail(lines, start, lines[start + 1 : at], language):
                found = lines[start + 1 : at]
            start = -1
    if start >= 0 and found is None and _is_mail(lines, start, lines[start + 1 :], language):
        return lines[start + 1 :]  # cut off before its end
    return lines if found is None else found


def _is_mail(lines: list[str], fence: int, block: list[str], language: str) -> bool:
    if language not in _TEXT_LANGUAGES or not any(map(str.strip, block)):
        return False
    if language in _MAIL_LANGUAGES or _begins_mail(block):
        return True
    before = [line.strip() for line in lines[max(0, fence - 3) : fence] if line.strip()]
    return fence == 0 or (len(before) == 1 and fence <= 3 and before[0].endswith((":", "：")))


def _begins_mail(lines: Sequence[str]) -> bool:
    """Whether a header field or a greeting comes first."""
    first = next((line for line in lines if line.strip()), "")
    return _field_name(first) != "" or read_greeting(first) is not None or _MARKUP.match(first.lstrip()) is not None


_LEAD_IN = re.compile(
    r"\b(?:reply|replies|e-?mail|response|message|draft|answer|version|antwort|nachricht|entwurf|réponse|message|courriel"
    r"|respuesta|correo|mensaje|resposta|mensagem|risposta|messaggio|antwoord|bericht|svar|odpowiedź|ответ|письмо"
    r"|回复|邮件|回信|返信|メール|답장|이메일)\b|回复|邮件|回信|返信|メール",
    re.IGNORECASE,
)
_OPENER = re.compile(
    r"(?:sure|certainly|of course|absolutely|okay|ok|great|here|below|happy to|i'd be|i have|i've|gerne|natürlich|hier"
    r"|bien sûr|voici|claro|aquí|aqui|certo|ecco)\b",
    re.IGNORECASE,
)
_RULE = re.compile(r"[ ]{0,3}(?:-{3,}|\*{3,}|_{3,}|={3,})[ \t]*$")


def _without_lead_in(lines: list[str]) -> list[str]:
    """Drop the paragraph that announces the e-mail."""
    first = next((at for at, line in enumerate(lines) if line.strip()), len(lines))
    if first == len(lines) or _begins_mail(lines[first:]):
        return lines[first:]
    end = first
    while end < len(lines) and end - first < 4 and lines[end].strip() and not _RULE.match(lines[end][:_LINE]):
        end += 1
    last = lines[end - 1].strip().rstrip("*_ ") if end > first else ""
    rest = end
    while rest < len(lines) and not lines[rest].strip():
        rest += 1
    if rest == len(lines):  # nothing else: then it is the e-mail
        return lines[first:]
    said = " ".join(line[:_LINE] for line in lines[first:end])
    announced = last.endswith((":", "：")) and _LEAD_IN.search(said) is not None
    after = lines[rest:]
    opened = _OPENER.match(said.lstrip("*_# ")) is not None and (
        _begins_mail(after) or (_RULE.match(after[0][:_LINE]) is not None and _LEAD_IN.search(said) is not None)
    )
    return after if announced or opened else lines[_begin(lines, first) :]


def _begin(lines: list[str], first: int) -> int:
    """Return where one of the first paragraphs begins an e-mail, with a greeting or a subject; else `first`.

    Nothing stands before the greeting of an e-mail, so what does is the model's own talk.
    """
    seen = 0
    for at in range(first, len(lines)):
        line = lines[at]
        seen += bool(line.strip())
        if seen > 12:
            break
        if at == first or not line.strip() or lines[at - 1].strip():
            continue
        greeting = read_greeting(line)
        alone = len(line) <= 60 and line.rstrip(" *_").endswith((",", ":", "!", "，", "：", "！", "،"))
        if (greeting is not None and greeting.formal and alone) or _field_name(line) == "subject":
            return at
    return first


def _between_rules(lines: list[str]) -> list[str]:
    """When a rule (`---`) comes first, return what stands between it and the next one."""
    if not lines or not _RULE.match(lines[0][:_LINE]):
        return lines
    end = next((at for at in range(1, len(lines)) if _RULE.match(lines[at][:_LINE])), len(lines))
    inside = lines[1:end]
    first = next((at for at, line in enumerate(inside) if line.strip()), len(inside))
    return inside[first:]


# ------------------------------------------------------------------------------------------------ header and MIME

_NAME = re.compile(r"[*_]{0,3}([^\W\d_][\w \-]{0,30}?)[*_]{0,3} ?[:：][*_]{0,3}(?=\s|$|[^\s/])")
_KNOWN = ("reply-to", "message-id", "in-reply-to", "references", "mime-version", "return-path", "received", "sender")


# One line alone is a header only when its name can mean nothing else ("An: …" and "Data: …" can).
_SURE = re.compile(
    r"[*_]{0,3}(?:subject|betreff|objet|asunto|oggetto|assunto|onderwerp|to|from|cc|date|content-type|тема|主题|件名)\b",
    re.IGNORECASE,
)


def _field_name(line: str) -> str:
    """Return the standard name of the header field that a line starts, or ""."""
    match = _NAME.match(line[:60])
    if match is None:
        return ""
    name = match[1].casefold()
    if name in FIELDS:
        return FIELDS[name]
    return name if name in _KNOWN or name.startswith(("content-", "x-")) else ""


def _header(lines: list[str]) -> tuple[dict[str, str], int]:
    """Return the header fields at the start, unfolded, and where the body begins."""
    fields: dict[str, str] = {}
    name, end = "", 0
    for line in lines:
        if name and line[:1] in (" ", "\t") and line.strip():
            fields[name] = f"{fields[name]} {line[:_FIELD].strip()}"[:_FIELD]
        else:
            name = _field_name(line)
            match = _NAME.match(line[:60])
            if not name or match is None:
                break
            fields[name] = line[match.end() : match.end() + _FIELD].strip().rstrip("*").strip()
        end += 1
    if end == 1 and not _SURE.match(lines[0]):
        return {}, 0
    return fields, end


def _decoded(value: str) -> str:
    """Return a field's text with its encoded words (RFC 2047) read."""
    if "=?" not in value or not value.isascii():
        return value
    try:
        return tidy(str(email.header.make_header(email.header.decode_header(value))))
    except (ValueError, LookupError, email.errors.HeaderParseError):
        return value


def _addresses(value: str) -> tuple[tuple[str, str], ...]:
    if not value:
        return ()
    pairs = email.utils.getaddresses([value.replace("(", " ").replace(")", " ")])  # comments nest without end
    read = [(_decoded(name).strip("*_ "), address) for name, address in pairs]
    if not any(name or "@" in address for name, address in read):  # "To: Anna Smith", as models write it
        return tuple((_decoded(part).strip("*_ "), "") for part in value.split(",") if part.strip())
    # A name without an address comes back as the address.
    return tuple((name or address, "") if "@" not in address else (name, address) for name, address in read)


def _mime(fields: dict[str, str], lines: list[str]) -> str | None:
    """Return the text of a MIME message; None when it is none, or cannot be taken apart."""
    kind = fields.get("content-type", "").lower()
    encoding = fields.get("content-transfer-encoding", "").lower()
    if not kind.startswith(("multipart/", "text/html")) and encoding not in ("quoted-printable", "base64"):
        return None
    body = "\n".join(lines)
    if body.lower().count("boundary=") > _MIME_PARTS:
        return None
    head = "".join(f"{name}: {value}\n" for name, value in fields.items() if name.startswith(("content-", "mime-")))
    try:
        message = email.message_from_bytes(f"{head}\n{body.lstrip(chr(10))}".encode("utf-8", "replace"))
        parts = [part for part in message.walk() if not part.is_multipart()]
    except (ValueError, LookupError, RecursionError):
        return None
    for wanted in ("text/plain", "text/html"):
        for part in parts:
            if part.get_content_type() == wanted and part.get_content_disposition() != "attachment":
                text = _payload(part)
                if text.strip():
                    return from_html(text) if wanted == "text/html" else text
    return None


def _payload(part: email.message.Message) -> str:
    data = part.get_payload(decode=True)
    if not isinstance(data, bytes):
        return ""
    encoded = str(part.get("content-transfer-encoding", "")).strip().lower() in ("quoted-printable", "base64")
    # What is not encoded is the completion's own text, whatever charset it claims.
    charset = (part.get_content_charset() or "utf-8") if encoded else "utf-8"
    try:
        return data.decode(charset, "replace")
    except (LookupError, ValueError):
        return data.decode("utf-8", "replace")


# ------------------------------------------------------------------------------------------------------------ HTML

_MARKUP = re.compile(
    r"<!doctype html|<(?:html|body|p|div|table|blockquote)[ >]|<br ?/?>|</(?:p|div|span)>", re.IGNORECASE
)
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]{0,20})([^<>]{0,4000})>")
_BLOCKS = frozenset(
    [
        "p",
        "div",
        "br",
        "tr",
        "li",
        "ul",
        "ol",
        "table",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
        "blockquote",
        "body",
        "html",
        "head",
        "title",
    ]
)
_HIDDEN = frozenset(["script", "style", "head", "title", "template"])
_QUOTE = re.compile(r"gmail_quote|yahoo_quoted|moz-cite-prefix|divRplyFwdMsg|appendonsend", re.IGNORECASE)


def from_html(text: str) -> str:
    """Return the visible text of HTML as lines; what is quoted starts with `> `. Linear, whatever the markup."""
    pieces: list[str] = []
    line: list[str] = []
    hidden = ""
    quoting: list[list[object]] = []  # [tag, depth] of each open quotation

    def end_line(gap: bool) -> None:
        said = " ".join("".join(line).split())
        line.clear()
        if said:
            pieces.append(f"> {said}" if quoting else said)
        elif gap and pieces and pieces[-1]:
            pieces.append("")

    text = _without_comments(text)
    at = 0
    for tag in _TAG.finditer(text):
        between, at = text[at : tag.start()], tag.end()
        if not hidden:
            line.append(html.unescape(between))
        closing, name = bool(tag[1]), tag[2].lower()
        if hidden:
            hidden = "" if closing and name == hidden else hidden
            continue
        if name in _BLOCKS:
            end_line(gap=name in ("p", "br", "table"))
        if name in ("p", "table") and closing and pieces and pieces[-1]:
            pieces.append("")
        if name in _HIDDEN and not closing:
            hidden = name
        _quote(quoting, name, closing, tag[3])
    if not hidden:
        line.append(html.unescape(text[at:]))
    end_line(gap=False)
    return "\n".join(pieces)


def _quote(quoting: list[list[object]], name: str, closing: bool, attributes: str) -> None:
    """Keep count of the quotations that are open."""
    if not closing and (name == "blockquote" or (name == "div" and _QUOTE.search(attributes))):
        quoting.append([name, 1])
    elif quoting and quoting[-1][0] == name:
        depth = int(str(quoting[-1][1])) + (-1 if closing else 1)
        quoting[-1][1] = depth
        if not depth:
            quoting.pop()


def _without_comments(text: str) -> str:
    kept, at = [], 0
    while (start := text.find("<!--", at)) >= 0:
        end = text.find("-->", start + 4)
        if end < 0:
            break
        kept.append(text[at:start])
        at = end + 3
    return "".join([*kept, text[at:]])
