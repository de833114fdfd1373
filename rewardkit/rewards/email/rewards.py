"""The e-mail rubric: `email_keywords`, `email_match`, `email_too_long`, `email_recipient`, `email_signature`.

`email_set` adds them up: from -1 to 4. Each finds the e-mail in the completion by the same rules (`mail.py`,
`layout.py`): the text in a fenced block, after "Here is your reply:" or in the parts of a MIME message; header fields,
greeting, sign-off and signature; and what is only quoted, which counts for nothing. A text over 100,000 characters
is not read (`too_large`).
"""

from __future__ import annotations

import email.utils
import json
import unicodedata
from typing import Any, Literal

from rewardkit.extract import opens_thinking
from rewardkit.reward import reward
from rewardkit.rewards.email.greeting import (
    Greeting,
    fold,
    is_person,
    name_words,
    names_nobody,
    spaceless,
    without_cjk_title,
)
from rewardkit.rewards.email.layout import Mail, read_mail
from rewardkit.rewards.email.mail import tidy, unwrap
from rewardkit.rewards.email.row_options import row_options
from rewardkit.types import Score

_SHOWN = 60


class _Unreadable(ValueError):
    """A column that is not what it should be."""


@row_options(name="email_keywords")
def email_keywords(
    completion: str, prompt: Any, *, keywords: list[str] | None = None, need: Literal["all", "any"] = "all"
) -> Score:
    """1 when the e-mail's own text holds the required keywords as whole words, in any case, else 0.

    Own text is what the writer wrote: greeting, body, sign-off, postscript, and a subject that is no "Re:". Quoted
    text, header fields and the signature block do not count. A keyword may be a phrase of several words; white space
    between them may be a line break. Whole words are bounded by what is neither letter, digit nor underscore, except in
    scripts without spaces.

    The column `keywords` goes before the option; it is a list, or a text in which commas, semicolons or line breaks
    stand between the keywords. Without either, or with an empty one, the row abstains (missing).

    Traps: "refund" is not found in "refunds" or "refunded"; give each form, with `need='any'`.

    Options:
        keywords: the required keywords, for rows without the column.
        need: "all" or "any" of them.

    Example:
        rewardkit try "email_keywords(keywords=['refund'])" 'Dear Anna, the refund is on its way.'
    """
    try:
        wanted = _keywords(keywords)
    except _Unreadable as problem:
        return Score(None, str(problem), reason="bad_reference")
    if not wanted:
        return Score(None, "no keywords: neither a column 'keywords' nor the option", reason="missing")
    mail = read_mail(completion, opens_thinking(prompt))
    if mail.problem:
        return Score(0.0, mail.problem, reason=mail.reason)
    own = _searchable("\n".join([_own_subject(mail.subject), *mail.body]))
    found = [word for word in wanted if _holds(own, _searchable(word))]
    lacking = [word for word in wanted if word not in found]
    earned = bool(found) if need == "any" else not lacking
    said = f"found {_listed(found)}" if found else ""
    if not earned:
        quoted = _searchable("\n".join(line.lstrip("> \t") for line in mail.quoted))
        elsewhere = [word for word in lacking if _holds(quoted, _searchable(word))]
        said = f"lacks {_listed(lacking)}" + (f"; {said}" if said else "")
        said += f"; only quoted: {_listed(elsewhere)}" if elsewhere else ""
    return Score(float(earned), said)


@reward(name="email_match")
def email_match(completion: str, prompt: Any, reference: Any) -> Score:
    """1 when the e-mail is the ideal reply (the reference), else 0; the detail shows the first line that differs.

    Line ends, white space at the end of lines, blank lines at both ends, invisible characters and Unicode composition
    (NFC) do not count; everything else does, also case. Either the whole completion or the e-mail in it (without
    "Here is your reply:" and a fence) must be the reference.

    Traps: a header or a quoted original that the reference lacks is a difference.

    Example:
        rewardkit try email_match --reference 'Dear Anna, it is on its way.' 'Dear Anna, it is on its way.'
    """
    if not isinstance(reference, str) or not tidy(reference).strip():
        shown = "an empty one" if isinstance(reference, str) else type(reference).__name__
        return Score(None, f"the ideal reply is a text, got {shown}", reason="bad_reference")
    opened = opens_thinking(prompt)
    found = unwrap(completion, opened=opened)
    if found.problem:
        return Score(0.0, found.problem, reason=found.reason)
    wanted = _even_lines(reference)
    given = _even_lines(found.text)
    if wanted == given or wanted == _even_lines(completion):
        return Score(1.0, "equal")
    return Score(0.0, _difference(given, wanted), reason="wrong")


@row_options(name="email_too_long")
def email_too_long(completion: str, prompt: Any, *, max_words: int = 200) -> Score:
    """-1 when the e-mail has more than `max_words` words, else 0.

    Words are what white space separates, in what the writer wrote: greeting, body, sign-off, signature. The header,
    quoted text, and what stands around the e-mail ("Here is your reply:") do not count.

    The column `max_words` goes before the option.

    Traps: an empty e-mail is not too long. A text of more than 100,000 characters always is (too_large), and earns 0
    from the other rewards of the set. Chinese and Japanese text without spaces is one word.

    Options:
        max_words: largest number of words that is not too long, for rows without the column.

    Example:
        rewardkit try "email_too_long(max_words=5)" 'Dear Anna, the refund is on its way.'
    """
    limit = _limit(max_words)
    if limit is None:
        shown = str(max_words)[:_SHOWN]
        return Score(None, f"max_words is a whole number of words, 0 or more, got {shown!r}", reason="bad_reference")
    mail = read_mail(completion, opens_thinking(prompt))
    if mail.problem:
        return Score(-1.0 if mail.reason == "too_large" else 0.0, mail.problem, reason=mail.reason)
    words = f"{mail.words:,} word{'s' * (mail.words != 1)}"
    if mail.words > limit:
        return Score(-1.0, f"{words}, above {limit:,}")
    return Score(0.0, f"{words} of at most {limit:,}")


@row_options(name="email_recipient")
def email_recipient(completion: str, prompt: Any, *, recipient: str | None = None, fold_accents: bool = False) -> Score:
    """1 when the e-mail addresses the right person, in its greeting or its `To` field, else 0.

    Names are compared as whole words, in any case and composed (NFC), without titles: "Ann" is not "Anna", and "Dear
    Dr. MÜLLER" names Anna Müller. A first name or a last name is enough; a name more that is not the person's (Anna
    Jones for Anna Smith) is another person. An initial stands for a name, but not alone. Of several who are greeted,
    one must be the recipient. A greeting that names somebody else is wrong whatever the `To` field says; one that names
    nobody ("Hi team", "Dear [Name]") leaves it to the `To` field: its display name, else the words of the address.

    The column `recipient` goes before the option: a name, a name with an address, an address (looked for in `To` only),
    or a list of these, of whom one must be addressed. Without either the row abstains (missing).

    Traps: a name elsewhere in the text, in the signature or in the quoted original does not count. Short forms (Bob for
    Robert) are other names. Titles are not compared: "Mr Smith" and "Mrs Smith" are one name.
    Words that are titles and names ("Don", "Ma") are names where the recipient's has them, or alone.

    Options:
        recipient: the recipient's name, for rows without the column.
        fold_accents: let Muller be Müller, and Jose José.

    Example:
        rewardkit try "email_recipient(recipient='Anna Smith')" 'Dear Ms. Smith, the refund is on its way.'
    """
    try:
        wanted = _recipients(recipient)
    except _Unreadable as problem:
        return Score(None, str(problem), reason="bad_reference")
    if not wanted:
        return Score(None, "no recipient: neither a column 'recipient' nor the option", reason="missing")
    mail = read_mail(completion, opens_thinking(prompt))
    if mail.problem:
        return Score(0.0, mail.problem, reason=mail.reason)
    return _addressed(mail, wanted, fold_accents)


@reward(name="email_signature")
def email_signature(completion: str, prompt: Any, *, contact: bool = False) -> Score:
    """1 when the e-mail ends with a signature block, else 0; the detail says what it holds.

    A block is: any text after the delimiter line `-- ` (RFC 3676; its space may be lost); or after a sign-off ("Best
    regards," and its like in twenty languages) a name with one line more (a position, a company, contact details), or
    contact details; or a last paragraph of a name and contact details. Contact details are a telephone number,
    an e-mail address, a part of a postal address, or a web address. A quotation, a postscript or a disclaimer may
    follow.

    Traps: a sign-off and a name alone are no block, nor with the name again or with several words all in lower case
    ("please call") below it. Placeholders ("[Your Name]") and "Sent from my phone" are not part
    of one. Contact details in the body are none.

    Options:
        contact: contact details must be in it.

    Example:
        rewardkit try email_signature $'Hi Anna,\\nit is on its way.\\n\\nBest regards,\\nTom Fisher\\ntom@example.com'
    """
    mail = read_mail(completion, opens_thinking(prompt))
    if mail.problem:
        return Score(0.0, mail.problem, reason=mail.reason)
    signature = mail.signature
    said = [f"sign-off {mail.sign_off[:_SHOWN]!r}"] if mail.sign_off else []
    if signature is None:
        return Score(0.0, f"{said[0]}, but nothing of a signature" if said else "no signature")
    said += ["delimiter '-- '"] if signature.delimited else []
    said += [f"name {signature.name[:_SHOWN]!r}"] if signature.name else []
    said += list(signature.contacts) or [f"{len(signature.lines)} lines" if len(signature.lines) > 1 else "one line"]
    detail = ", ".join(said)
    whole = signature.delimited or signature.contacts or (signature.name and signature.says_more)
    if not whole:
        return Score(0.0, f"{detail}: no block; a position, a company or contact details are wanted, too")
    if contact and not signature.contacts:
        return Score(0.0, f"{detail}: no telephone number, e-mail, postal or web address")
    return Score(1.0, detail, extracted=signature.name or None)


email_set = email_keywords + email_match + email_too_long + email_recipient + email_signature
"""The rubric: from -1 to 4. It needs the columns `keywords` and `recipient` and the ideal reply as reference."""


# ------------------------------------------------------------------------------------------------------------ keywords


def _keywords(given: Any) -> list[str]:
    """Read the keywords of a row.

    Raises:
        _Unreadable: They are no texts.
    """
    if given is None:
        return []
    items = _list_text(given) if isinstance(given, str) else given
    if isinstance(items, str):
        items = items.replace(";", ",").replace("\n", ",").split(",")
    elif isinstance(items, int) and not isinstance(items, bool):
        items = [items]
    if not isinstance(items, (list, tuple)):
        raise _Unreadable(f"keywords are a list of texts, or a text, got {type(items).__name__}")
    for item in items:
        if isinstance(item, bool) or not isinstance(item, (str, int)):
            raise _Unreadable(f"a keyword is a text, got {type(item).__name__}")
    words = [" ".join(tidy(str(item)).split()) for item in items]
    return list(dict.fromkeys(word for word in words if word))


def _list_text(text: str) -> Any:
    """Read a list as tables write it (`["a", "b"]`); any other text stays as it is."""
    if not text.lstrip().startswith("["):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _own_subject(subject: str) -> str:
    """Return the subject when the writer chose it; that of a reply or a forwarded mail is another's."""
    head, colon, _ = subject.partition(":")
    return "" if colon and len(head.strip()) <= 4 else subject


def _searchable(text: str) -> str:
    return " ".join(fold(text.replace("’", "'")).split())


def _holds(text: str, word: str) -> bool:
    """Whether a word or phrase stands in a text, not as a part of longer words."""
    at = text.find(word) if word else -1
    while at >= 0:
        end = at + len(word)
        if not (_joined(text[at - 1 : at], word[0]) or _joined(word[-1], text[end : end + 1])):
            return True
        at = text.find(word, at + 1)
    return False


def _joined(left: str, right: str) -> bool:
    """Whether two neighbouring characters belong to one word."""
    if not left or not right or spaceless(left) or spaceless(right):
        return False
    return _of_word(left) and _of_word(right)


def _of_word(char: str) -> bool:
    return char.isalnum() or char == "_" or unicodedata.category(char).startswith("M")


def _listed(words: list[str]) -> str:
    shown = ", ".join(repr(word[:_SHOWN]) for word in words[:8])
    return shown + (f" and {len(words) - 8} more" if len(words) > 8 else "")


# --------------------------------------------------------------------------------------------------------- ideal reply


def _even_lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in tidy(text).split("\n")).strip()


def _difference(given: str, wanted: str) -> str:
    ours, theirs = given.split("\n"), wanted.split("\n")
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False), 1):
        if one != other:
            at = next(
                (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
            )
            start = max(0, at - 20)
            return f"line {number} differs: {one[start : at + 20]!r}, not {other[start : at + 20]!r}"
    more = "more" if len(ours) > len(theirs) else "fewer"
    return f"{len(ours)} lines, {more} than {len(theirs)}"


# ---------------------------------------------------------------------------------------------------- length, recipient


def _limit(value: Any) -> int | None:
    """Read a number of words; None when it is none. A wrong option comes here as well as a wrong column."""
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdecimal() and len(value) < 10:
        return int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if value >= 0 else None


def _recipients(given: Any) -> list[tuple[str, str]]:
    """Read the recipients of a row as names and addresses.

    Raises:
        _Unreadable: One is no text, or no name.
    """
    read = []
    for item in given if isinstance(given, (list, tuple)) else [] if given is None else [given]:
        if not isinstance(item, str):
            raise _Unreadable(f"a recipient is a name, got {type(item).__name__}")
        text = " ".join(tidy(item).split())[:500]
        if not text:
            continue
        name, address = email.utils.parseaddr(text) if "@" in text else (text, "")
        if not name and "@" not in address:
            raise _Unreadable(f"a recipient is a name or an address, got {text[:_SHOWN]!r}")
        if name and not name_words(name):
            raise _Unreadable(f"a recipient is a name, got {text[:_SHOWN]!r}")
        read.append((name, address))
    return read


def _addressed(mail: Mail, wanted: list[tuple[str, str]], fold_accents: bool) -> Score:
    """Judge whom an e-mail addresses: by its greeting, else by its `To` field."""
    names = [name_words(name, fold_accents=fold_accents) for name, _ in wanted if name]
    who = " or ".join(repr((name or address)[:_SHOWN]) for name, address in wanted[:3])
    greeting = mail.greeting
    greeted: list[str] = []
    for words in greeting.people if greeting is not None else ():
        said = " ".join(words).strip(" ,.:;!，：！")
        for person in names:
            given = name_words(words, fold_accents=fold_accents, own=person)
            if is_person(person, given) or _surname(person, given):
                return Score(1.0, f"the greeting names {said[:_SHOWN]!r}", extracted=said)
        if not names_nobody(name_words(words, fold_accents=fold_accents, own=())):
            greeted.append(said[:_SHOWN])
    if greeted and greeting is not None and greeting.formal and (names or not mail.to):
        shown = ", ".join(map(repr, greeted[:3]))
        return Score(0.0, f"the greeting names {shown}, not {who}", extracted=greeted[0], reason="wrong")
    for display, address in mail.to:
        for name, mailbox in wanted:
            if mailbox and mailbox.casefold() == address.casefold():
                return Score(1.0, f"To: {address[:_SHOWN]}", extracted=address)
            person = name_words(name, fold_accents=fold_accents)
            shown = display or address.partition("@")[0].translate(_SEPARATORS)
            if is_person(person, name_words(shown, fold_accents=fold_accents, own=person)):
                return Score(1.0, f"To: {(display or address)[:_SHOWN]}", extracted=display or address)
    return Score(0.0, f"{_who_else(mail, greeting)}, not {who}", reason="wrong")


_SEPARATORS = str.maketrans("._-+", "    ")


def _surname(wanted: tuple[str, ...], given: tuple[str, ...]) -> bool:
    """Whether 王先生 names 王伟: a family name, the first character of a name, in front of a title."""
    if len(given) != 1 or not spaceless(given[0][0]):
        return False
    bare = without_cjk_title(given[0])
    return any(name == bare or (bare != given[0] and name.startswith(bare)) for name in wanted)


def _who_else(mail: Mail, greeting: Greeting | None) -> str:
    parts = [f"the greeting {greeting.line[:_SHOWN]!r} names nobody" if greeting is not None else "no greeting"]
    if mail.to:
        parts.append("To: " + ", ".join((name or address)[:_SHOWN] for name, address in mail.to[:3]))
    return ", ".join(parts)
