"""`choice`: multiple choice, answered by a label or by the text of an option."""

from __future__ import annotations

import ast
import json
import re
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, PrivateAttr

from rewardkit.extract import boxed, final_line, hash_marker, tagged
from rewardkit.number import read_number, same_number
from rewardkit.types import Completion, Sample, Score, Verdict
from rewardkit.verifier import Reference, Verifier
from rewardkit.verifiers.numeric import UNFINISHED, answer_region

MAX_OPTIONS = 26
MAX_TEXT = 4000  # characters of an option in a prompt
MAX_STATEMENT = 600  # characters of a statement that are looked at
MAX_MARKERS = 50  # places that may state an answer, looked at from the last one on
MAX_END = 20_000  # characters at the end of a completion that are looked at, and of a prompt five times as many

LETTERS = tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_USUAL = LETTERS[:10]
_DIGITS = tuple(map(str, range(1, 11)))
_ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X")


# ------------------------------------------------------------------------------------- the question


class Options(NamedTuple):
    """The options of one question: their labels as they are shown, and their texts where they are known."""

    labels: tuple[str, ...]
    texts: tuple[str, ...] = ()

    def show(self, places: Sequence[int] | frozenset[int]) -> str:
        return " and ".join(self.labels[place] for place in sorted(places))


def read_options(value: Any) -> Options:
    """Read options from a column: a list of texts, a mapping of label to text, `{"text": […], "label": […]}`, a list of
    `{"label": …, "text": …}`, or the text of one of these, as JSON or as Python writes it.

    Raises:
        ValueError: It is none of these, or has fewer than two options.
    """
    if isinstance(value, str):
        try:
            value = _literal(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            raise ValueError(f"options are a list of texts or a mapping of label to text, got {value[:60]!r}") from None
    labels: list[str] | None = None
    if isinstance(value, Mapping):
        lists = [item for item in value.values() if isinstance(item, (list, tuple))]
        if len(lists) == len(value) == 2 or (len(lists) == 1 == len(value)):
            texts = value.get("text", value.get("texts", value.get("choices")))
            given = value.get("label", value.get("labels"))
            labels = [_word(item) for item in given] if isinstance(given, (list, tuple)) else None
        else:
            labels, texts = [_word(key) for key in value], list(value.values())
    elif isinstance(value, (list, tuple)) and value and all(isinstance(item, Mapping) for item in value):
        labels = [_word(item.get("label", item.get("key"))) for item in value]
        texts = [item.get("text", item.get("value", item.get("content"))) for item in value]
    else:
        texts = value
    if not isinstance(texts, (list, tuple)) or not 2 <= len(texts) <= MAX_OPTIONS:
        raise ValueError(f"options are 2 to {MAX_OPTIONS} texts in a list, or a mapping of label to text")
    words = [_word(text) for text in texts]
    if labels is None:
        labels, words = _own_labels(words)
    different = len(set(map(str.casefold, labels))) == len(words) == len(labels)
    if not different or not all(re.fullmatch(r"\w{1,4}", label) for label in labels):
        raise ValueError("the labels of the options are short, and differ from each other")
    return Options(tuple(labels), tuple(words))


def _literal(text: str) -> Any:
    """Read a literal as JSON, else as Python writes lists and mappings; nothing is evaluated."""
    try:
        return json.loads(text)
    except ValueError:
        if not text.lstrip().startswith(("[", "{")) or len(text) > MAX_END:
            raise
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a backslash that escapes nothing
        return ast.literal_eval(text.strip())


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "True" if value else "False"
    if not isinstance(value, (str, int, float)):
        raise ValueError(f"an option is a text, got {type(value).__name__}")
    return str(value).strip()


_LABELLED = re.compile(r"\s*[(\[]?([A-Za-z]|\d{1,2})[)\].:：、]\s*(.+)", re.DOTALL)


def _own_labels(texts: list[str]) -> tuple[list[str], list[str]]:
    """Take labels that stand in the texts themselves (`A)21`), where all of them have one, in order."""
    split = [_LABELLED.match(text) for text in texts]
    if all(split):
        found = [match[1] for match in split if match]
        for kind in (LETTERS, tuple(map(str.lower, LETTERS)), _DIGITS):
            if tuple(found) == kind[: len(found)]:
                return found, [match[2].strip() for match in split if match]
    return list(LETTERS[: len(texts)]), texts


_SHOWN = re.compile(
    r"(?:(?<=[\n])|(?<=\s)|^)[ \t]*(?:[-*•][ \t]+)?(?:\*\*)?(?:(?:Option|Choice)[ \t]+)?"
    r"(?P<open>[(\[]?)(?P<label>[A-Z]|[a-z]|\d{1,2}|[IVX]{1,4}|[ivx]{1,4})(?P<close>[)\].:：、])(?:\*\*)?(?P<gap>\s*)(?=\S)"
)


def options_in(prompt: str) -> Options | None:
    """The last options that a prompt lists: `A) …`, `(A) …`, `A. …`, `[A] …`, one a line or in a row; also with digits
    or roman numerals."""
    runs: dict[tuple[str, str, str], list[re.Match[str]]] = {}
    done: list[tuple[tuple[str, ...], list[re.Match[str]]]] = []
    for match in _SHOWN.finditer(prompt):
        first = match.start("open")
        before = prompt[max(0, first - 20) : first].rpartition("\n")
        at_line = (bool(before[1]) or first < 20) and not _BULLET.sub("", before[2])
        if match["close"] not in ")]、" and not match["gap"]:
            continue
        for name, kind in _KINDS.items():
            if match["label"] not in kind:
                continue
            key = (name, match["open"], match["close"])
            run = runs.get(key, [])
            if run and len(run) < len(kind) and match["label"] == kind[len(run)]:
                run.append(match)
            elif match["label"] == kind[0]:
                runs[key] = run = [match]
            # Digits, and letters in a row with nothing but a full stop, are often something else.
            bracketed = bool(match["open"])
            enough = 2 if at_line or bracketed or (name in _ALPHABETS and match["close"] == ")") else 3
            if len(run) == enough and (name in _ALPHABETS or at_line or bracketed):
                done.append((kind, run))
    best: Options | None = None
    start = len(prompt)
    # Letters before digits, which may be numbered instructions; then the last list, but the outer one of two.
    done.sort(key=lambda item: (item[0] in (LETTERS, _SMALL), item[1][0].start()), reverse=True)
    for kind, run in done[:50]:
        outer = best is not None and run[0].start() < start <= run[-1].start() and len(run) >= len(best.labels)
        if best is not None and not outer:
            continue
        options = _with_texts(prompt, kind, run)
        if options is not None:
            best, start = options, run[0].start()
    return best


def _with_texts(prompt: str, kind: tuple[str, ...], run: list[re.Match[str]]) -> Options | None:
    last = prompt.find("\n", run[-1].end())
    ends = [match.start() for match in run[1:]] + [last if last >= 0 else len(prompt)]
    texts = [prompt[match.end() : end].strip(" \t\r\n;,*") for match, end in zip(run, ends, strict=True)]
    if not all(texts) or max(map(len, texts)) > MAX_TEXT:
        return None
    return Options(kind[: len(run)], tuple(map(_without_label, texts, kind)))


_SMALL = tuple(map(str.lower, LETTERS))
_BULLET = re.compile(r"[-*•\s]|Option|Choice")
_ALPHABETS = ("upper", "lower")
_KINDS: dict[str, tuple[str, ...]] = {
    "upper": LETTERS,
    "lower": _SMALL,
    "digits": _DIGITS,
    "roman": _ROMAN,
    "small roman": tuple(map(str.lower, _ROMAN)),
}


def _without_label(text: str, label: str) -> str:
    match = _LABELLED.match(text)
    return match[2].strip() if match is not None and match[1] == label else text


# ----------------------------------------------------------------------------------- what a text states


class Reading(NamedTuple):
    """What a statement says.

    Attributes:
        places: The options that it names, at least one.
        hedged: It leaves open which one.
        text: The words that say so.
        whole: It says nothing else.
    """

    places: frozenset[int]
    hedged: bool
    text: str
    whole: bool = False


_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\x00]")
_FONTS = r"text(?:bf|it|rm|sf|tt|normal)?|math(?:bf|it|rm|sf|tt|cal)|mbox|operatorname|bm|underline|emph|boxed|fbox"
_FONT = re.compile(rf"\\(?:{_FONTS})\s*+(?=\{{)")
_DRESS = re.compile(
    r"\\(?:left|right|displaystyle|[bB]igg?[lr]?)(?![A-Za-z])|\\[()\[\]!]|\$|\*\*|__|`|</?(?:b|i|u|strong|em|answer|p|br)>"
)
_GAP = re.compile(r"\\[,;: ]|\\q?quad(?![A-Za-z])|~|\s")


def clean(text: str) -> str:
    """Return a statement without what only dresses it: fonts, maths delimiters, Markdown, zero-width characters."""
    text = unicodedata.normalize("NFKC", _UNSEEN.sub("", text[:MAX_STATEMENT]))
    text = _DRESS.sub("", _FONT.sub("", text))
    if "\\" not in text:
        text = text.replace("{", " ").replace("}", " ")
    return " ".join(_GAP.sub(" ", text).split()).strip(" *_\"'“”‘’#>")


@lru_cache(maxsize=4096)
def _plain(text: str) -> str:
    """Return a text as options are compared: case-folded, without dress and without punctuation at its ends."""
    return clean(text).casefold().strip(" .,;:!?\"'“”‘’")


# What may stand before the label of a statement, and says nothing.
_LEADS = (
    "so thus therefore hence finally ok okay then is it this that either both only just probably likely most clearly"
    " indeed simply definitely actually the my your our correct right best final answer answers choice choices option"
    " options letter letters alternative number would must should be"
)
_LEAD = re.compile(
    rf"(?:(?:{_LEADS.replace(' ', '|')}|it['’]s|in conclusion)\b[\s,:：]*+|[-–—•:：>=→]\s*+|[选是为]项?\s*+)",
    re.IGNORECASE,
)
_REASON = "because|since|as|is|are|which|with|due|given|for|being|by|and|or|where|while|not|but|seems|fits|matches"
_FOLLOWS = re.compile(rf"\s*+(?:$|[.,;:!?)\]。，；：）】—–|/&]|-\s|\(|(?:{_REASON})\b)", re.IGNORECASE)
_PRONOUN = re.compile(r"\s*+(?:$|[.,;:!?)\]。，；：）】—–|/&]|-\s|\(|(?:because|since|is|and|or)\b)", re.IGNORECASE)
_SYMBOL = re.compile(r"\s*+[=^<>≤≥×*]|[+\\{_]|[-–][A-Za-z0-9]|[.,]\d|['’]\w|\s*+\(\w{1,8}\)\s*+=")
_IF = re.compile(r"\s*+(?:only )?(?:if|unless)\b", re.IGNORECASE)
_JOINT = re.compile(
    r"\s*+(?:(?:[,(]\s*+)?(?P<word>\b(?:and/or|and|or|und|oder|ou|et|either)\b|或者?|和|与)|(?P<mark>[,，、;&/]|(?=[(\[])))\s*+"
    r"(?:(?:or|and|maybe|possibly|perhaps|also|even|probably|option|choice|answer|the|letter|both|either)\s++)*+",
    re.IGNORECASE,
)
_HEDGES = frozenset({"or", "and/or", "oder", "ou", "either", "或", "或者", "/"})
_OR = re.compile(r"\b(?:or|maybe|possibly|perhaps|even|probably)\b", re.IGNORECASE)
_NOT = re.compile(
    r"\b(?:not|never|neither|nor|cannot|incorrect|wrong|false|eliminat\w*|ruled? out|except|unless|unlike|exclud\w*)\b"
    r"|\bno\b|n['’]t\b|不|\banything but\b|\bhardly\b|(?<!without )(?<!without a )(?<!beyond )\bdoubt(?:s|ed|ful)?\b",
    re.IGNORECASE,
)
_CORRECTED = re.compile(r"\b(?:no,? wait|wait,|correction:|or rather|I mean)", re.IGNORECASE)
# What takes back the sentence before it.
_NO = re.compile(r"\W{0,8}no\b\s?[,:：—–]\s*+", re.IGNORECASE)
_TAKES_BACK = re.compile(
    r"\b(?:no\W{1,3}wait|wait\W{1,3}no|wait,|correction:|or rather|scratch that|I mean(?= )(?! that))[\s,.:…!—–-]*+",
    re.IGNORECASE,
)
_BUT = re.compile(
    r"\bbut\s(?:(?:it|that|this|the (?:\w{1,12} )?answer)(?:\sis|['’]s)\s(?:actually\s|really\s|in fact\s)?"
    r"|(?:actually|really|in fact)\s)(?:the\s|option\s)*+",
    re.IGNORECASE,
)
_STRUCK = re.compile(r"~~[^~\s](?:[^~\n]{0,198}[^~\s])?~~")
_CLAUSES = re.compile(r";|(?<!anything )\bbut\b|\bleav(?:es|ing)\b")
# A sentence that denies what it names and says nothing else.
_DENIAL = re.compile(
    r"(?:(?:so|and)\s)?(?:(?:it|this|that|the answer)(?:\s(?:is|was|can|could)\snot|\s(?:is|was)n['’]t|['’]s not"
    r"|\scannot|\s(?:can|could)n?['’]t)\b[^,;:—–]{0,80}|[^,;:—–]{1,60}\s(?:is|are)\s(?:wrong|incorrect|false))\W{0,8}$",
    re.IGNORECASE,
)
_NAMES = re.compile(r"\b(?:vitamin|plan|type|group|hepatitis|grade|class|team|series)s? $", re.IGNORECASE)
_VERB = re.compile(
    r"\W*(?:is|are|was|were|can|could|does|do|has|have|would|will|may|might|must|should|\w+ed)\b", re.IGNORECASE
)


class Reader:
    """Reads what statements say about the options of one question."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.places = {label.casefold(): place for place, label in enumerate(options.labels)}
        label = "|".join(map(re.escape, sorted(options.labels, key=len, reverse=True)))
        self.token = re.compile(
            rf"(?:(?P<open>[(\[<])\s?)?(?P<label>{label})(?(open)\s?[)\]>]|)(?![A-Za-z0-9_])", re.IGNORECASE
        )
        self.correct = re.compile(self.token.pattern + _IS_CORRECT, re.IGNORECASE)
        self.contrast = re.compile(rf",\s(?:and\s)?not\s(?:option\s)?{self.token.pattern}(?=\W|$)", re.IGNORECASE)
        self.letters = all(len(text) == 1 and text.isalpha() for text in options.labels)
        self.plain = tuple(map(_plain, options.texts))
        self.numbers = tuple(map(read_number, options.texts))

    def read(self, text: str) -> Reading | None:
        """Read a statement that is marked as the answer; None when it names no option."""
        if "~~" in text and _STRUCK.search(text[:MAX_STATEMENT]) is not None:
            reading = self._read(text)
            return None if reading is None else reading._replace(hedged=True)
        return self._read(text)

    def _read(self, text: str) -> Reading | None:
        text = clean(text)
        place = self.places.get(text.strip(" .,;:!?()[]<>").casefold())
        if place is not None:
            return Reading(frozenset({place}), False, text, True)
        return self._as_text(text) or self._as_labels(text) or self._run_together(text.strip(" ."))

    def _as_text(self, text: str) -> Reading | None:
        """The whole statement is an option's text, or a number that is one."""
        plain = _plain(text)
        same = [place for place, own in enumerate(self.plain) if own and own == plain]
        if not same and any(self.numbers):
            quantity = read_number(text)
            if quantity is not None:
                same = [place for place, own in enumerate(self.numbers) if own and same_number(quantity, own)]
        return Reading(frozenset(same), False, text, True) if len(same) == 1 else None

    def _as_labels(self, text: str) -> Reading | None:
        """The statement begins with one or several labels: `(B) Paris`, `B because …`, `A or C`."""
        at = 0
        found = self._label(text, at, False)
        while found is None and (lead := _LEAD.match(text, at)) is not None:
            at = lead.end()
            found = self._label(text, at, False)
        if found is None or _IF.match(text, found[1]) is not None:
            return None
        places, end, hedged = {found[0]}, found[1], False
        while (joint := _JOINT.match(text, end)) is not None:
            more = self._label(text, joint.end(), True)
            if more is None:
                break
            doubt = (joint["word"] or joint["mark"]).lower() in _HEDGES or _OR.search(joint[0]) is not None
            hedged = hedged or (doubt and more[0] not in places)
            places.add(more[0])
            end = more[1]
        hedged = hedged or _CORRECTED.search(text, end) is not None or self._taken_back(text, end, places)
        rest = _plain(text[end:].lstrip(" .:)-–—"))
        whole = not rest
        if rest and len(places) == 1:
            others = [place for place, own in enumerate(self.plain) if own and own == rest]
            whole = bool(others)
            if others and not places & set(others):
                return Reading(frozenset(places | set(others)), True, text, True)
        return Reading(frozenset(places), hedged, text[at : len(text) if whole else end].strip(" .,;:"), whole)

    def _taken_back(self, text: str, at: int, places: set[int]) -> bool:
        """Whether a statement goes on with "but it is actually C"."""
        but = _BUT.search(text, at)
        label = None if but is None else self._label(text, but.end(), True)
        return label is not None and label[0] not in places

    def _label(self, text: str, at: int, chained: bool) -> tuple[int, int] | None:
        """Return the label at `at` and where it ends, unless it is a word or a symbol there."""
        match = self.token.match(text, at)
        if match is None:
            return None
        label, end = match["label"], match.end()
        place = self.places[label.casefold()]
        if match["open"]:
            return place, end
        if _SYMBOL.match(text, end) is not None:
            return None
        # A lower-case letter, a digit, and A and I may be a word, a number and a pronoun.
        follows = _PRONOUN if label in ("i", "I") else _FOLLOWS if not label.isupper() or label == "A" else None
        if follows is not None and follows.match(text, end) is None:
            own = self.plain[place] if self.plain else ""
            if not own or not _plain(text[end:]).startswith(own):
                return None
        if chained and re.match(r"\s+(?:is|was|isn't|cannot|can't)\b", text[end:]) is not None:
            return None
        return place, end

    def _run_together(self, text: str) -> Reading | None:
        """`AC` for A and C: upper-case labels in order."""
        if not self.letters or not 2 <= len(text) <= 6 or not text.isupper():
            return None
        places = [self.places.get(char.casefold(), -1) for char in text]
        ordered = places[0] >= 0 and places == sorted(set(places))
        return Reading(frozenset(places), False, text, True) if ordered else None

    def line(self, text: str) -> Reading | None:
        """Read a line that nobody marks: it must be a statement, and not prose that begins with a label."""
        reading = self.read(text)
        if reading is None or reading.whole:
            return reading
        rest = clean(text).partition(reading.text)[2]
        separated = re.match(r"[.):：]*\s*(?:$|[-–—.):：,;]|\()|[.):：]|\s+(?:because|since)\b", rest) is not None
        return reading if separated and _VERB.match(rest) is None and _NOT.search(rest[:60]) is None else None

    def mentioned(self, text: str, *, denied: bool = False) -> Reading | None:
        """The options whose text occurs in a statement, as whole words, and not inside another option's text."""
        plain = _plain(text)
        if not self.plain or (not denied and _NOT.search(plain) is not None):
            return None
        spans = []
        for place, own in enumerate(self.plain):
            at = plain.rfind(own) if own and (len(own) > 1 or own.isdecimal()) else -1
            while at >= 0 and _cuts_word(plain, at, at + len(own)):
                at = plain.rfind(own, 0, at + len(own) - 1) if at else -1
            if at >= 0:
                spans.append((at, at + len(own), place))
        outer = [a for a in spans if not any(b[0] <= a[0] and a[1] <= b[1] and b[:2] != a[:2] for b in spans)]
        return Reading(frozenset(span[2] for span in outer), len(outer) > 1, text.strip()[:200]) if outer else None

    def denied(self, sentence: str) -> frozenset[int]:
        """The options that a sentence names, be it to deny them."""
        labels = self.named(sentence, denied=True)
        texts = self.mentioned(sentence, denied=True)
        return frozenset().union(*(reading.places for reading in (labels, texts) if reading is not None))

    def named(self, sentence: str, *, denied: bool = False) -> Reading | None:
        """The labels that a sentence of prose names: `(B)` and `B`, but neither articles, pronouns nor symbols."""
        plain = clean(sentence)
        if not denied:
            plain = self.contrast.sub("", plain)  # "B, not A"
        if not denied and _NOT.search(plain) is not None:  # "not A but B" still names B
            plain = "; ".join(clause for clause in _CLAUSES.split(plain) if _NOT.search(clause) is None)
        if "\\" in plain:
            return None
        places = set()
        for match in self.token.finditer(plain):
            label, before, end = match["label"], plain[: match.start()][-1:], match.end()
            if before and (before.isalnum() or before in "'’-–_^/=+"):
                continue
            if not match["open"]:
                if not label.isupper() or label == "I" or _SYMBOL.match(plain, end) is not None:
                    continue
                if _NAMES.search(plain[max(0, match.start() - 16) : match.start()]) is not None:
                    continue
                if label == "A" and _FOLLOWS.match(plain, end) is None:
                    continue
            places.add(self.places[label.casefold()])
        return Reading(frozenset(places), len(places) > 1, plain[-200:]) if places else None


def _cuts_word(text: str, start: int, end: int) -> bool:
    """Whether a stretch of a text begins or ends inside a word or a number."""
    before, after = text[:start][-2:], text[end : end + 2]
    if before and text[start].isalnum() and before[-1].isalnum():
        return True
    if after and text[end - 1].isalnum() and after[0].isalnum():
        return True
    if text[start].isdecimal() and (re.fullmatch(r"\d[.,]", before) or before[-1:] in ("-", "−")):
        return True
    return text[end - 1].isdecimal() and re.fullmatch(r"[.,]\d", after) is not None


# ----------------------------------------------------------------------- where a completion states its answer

_NOUN = re.compile(
    r"\b(?P<strong>ans(?:wers?)?|réponse|respuesta|resposta|risposta|antwort)\b|ответ|答案"
    r"|\b(?P<weak>choice|option|letter|selection|alternative|response|match|solution|conclusion)\b",
    re.IGNORECASE,
)
_ADJECTIVE = re.compile(
    r"\b(?:correct|right|best|final|appropriate|suitable|closest|nearest|chosen|selected|my|likely|accurate|logical"
    r"|reasonable|valid|matching)\b(?:\W{1,3}\w{1,20}){0,3}\W{0,3}$",
    re.IGNORECASE,
)
_WRONG = re.compile(r"\b(?:incorrect|wrong|false|bad|no|not|previous|another|other)\W{0,3}$", re.IGNORECASE)
_COPULA = re.compile(
    r"\b(?:is|are|was|will be|would be|should be|must be|has to be|would have to be|est|es|é|è|ist|lautet)\b"
    r"|[:：]|=>|->|→|[是为选]|(?<=\w) ?=",
    re.IGNORECASE,
)
_CHOOSE = re.compile(
    r"\b(?:I(?:['’]ll| will| would|['’]d)? (?:choose|pick|select|go with|chose|picked|selected|say|answer)"
    r"|I(?:['’]m| am) going with|(?:we|let['’]s|let us) (?:choose|pick|select|go with|chose)"
    r"|(?:so|therefore|thus|hence),? (?:choose|pick|select)|correspond(?:s|ing)? (?:best |exactly )?(?:to|with)"
    r"|match(?:es)? (?:exactly |best )?(?:with )?(?=[\w ]{0,8}(?:option|choice|answer|\()))[\s:：]*+|[故应]选\s*+",
    re.IGNORECASE,
)
_IS_CORRECT = (
    r"\s+(?:is|seems|must be|looks)\s+(?:(?:clearly|therefore|thus|indeed|the|most|our|my|only)\s+){0,3}"
    r"(?:correct|right|best|answer|appropriate|closest)\b"
)
_STOP = re.compile(r"[.!?](?=\s|$)|。")
_CHOICES = re.compile(r"s?\W{0,3}(?:choices|options)\b", re.IGNORECASE)


class Place(NamedTuple):
    """A place where a completion states its answer; `reading` is None when it names no option there."""

    start: int
    rule: str
    reading: Reading | None
    text: str = ""


def stated(text: str, reader: Reader) -> Place | None:
    """Where a text states its answer; None when it does so nowhere.

    The last of these: a box, `####`, "the answer is" and its like, a last line that is nothing but an answer. Without
    any "I choose B" or "B is correct", then a first line that is nothing but an answer, then the only option that
    the end of the text names.
    """
    text = text[-MAX_END:]
    marked = [*_boxes(text, reader), *_hashes(text, reader), *_phrases(text, reader), *_last_line(text, reader)]
    marked.sort(key=lambda place: place.start)
    readable = [place for place in marked if place.reading is not None]
    if marked and (not readable or (marked[-1].rule == "in \\boxed" and readable[-1] != marked[-1])):
        return marked[-1]
    if readable:
        return _joined(text, readable)
    weak = sorted([*_chosen(text, reader), *_called_correct(text, reader)], key=lambda place: place.start)
    if weak:
        return _same_sentence(text, weak)
    return _first_line(text, reader) or _in_prose(text, reader)


def _boxes(text: str, reader: Reader) -> list[Place]:
    places: list[Place] = []
    end = len(text)
    while len(places) < 6 and (box := boxed(text[:end])) is not None:
        reading = (reader.read(box.text) or reader.mentioned(box.text)) if box.text else None
        places.append(Place(box.start, "in \\boxed", reading, box.text))
        end = max(text.rfind("\\boxed", 0, box.start), text.rfind("\\fbox", 0, box.start))
    # Only the last box can be one that says nothing.
    return places[:1] + [place for place in places[1:] if place.reading is not None]


def _hashes(text: str, reader: Reader) -> list[Place]:
    found = hash_marker(text)
    if found is None:
        return []
    reading = reader.read(found.text) or reader.mentioned(found.text)
    return [Place(found.start, "after ####", reading, found.text)]


def _phrases(text: str, reader: Reader) -> list[Place]:
    places = []
    nouns = list(_NOUN.finditer(text))
    for noun in reversed(nouns[-MAX_MARKERS:]):
        before = text[max(0, noun.start() - 60) : noun.start()].rpartition("\n")[2]
        if _WRONG.search(before) is not None or _CHOICES.match(text, noun.end()) is not None:
            continue
        labels = not before.strip(_MARKUP) and ":" in text[noun.end() : noun.end() + 4]
        if noun["weak"] and not labels and _ADJECTIVE.search(before) is None:
            continue
        place = _said(text, noun.end(), reader)
        if place is not None:
            places.append(place)
            if len(places) == 6:
                break
    return places


def _said(text: str, at: int, reader: Reader) -> Place | None:
    """Read what follows "answer": the first copula with an option behind it."""
    line = text[at : at + 160].partition("\n")[0]
    stop = _STOP.search(line)
    clause = line if stop is None else line[: stop.start()]
    for copula in islice(_COPULA.finditer(clause), 4):
        start = at + copula.end()
        reading = _statement(text, start, reader)
        if reading is not None:
            return Place(start, 'after "the answer is"', reading)
    heading = None if line.strip(_MARKUP) else _heading(text, at + len(line), reader)
    return None if heading is None else Place(at, 'after "answer:"', heading)


def _statement(text: str, start: int, reader: Reader) -> Reading | None:
    """Read a line from `start`: its first sentence, else all of it; an empty one is continued on the next."""
    line = text[start : start + MAX_STATEMENT].partition("\n")[0]
    if not line.strip(_MARKUP):
        return _heading(text, start + len(line), reader)
    stop = _STOP.search(line)
    if stop is None:
        return reader.read(line) or reader.mentioned(line)
    first = line[: stop.start()]
    reading = reader.read(first) or reader.read(line) or reader.mentioned(first)
    return None if reading is None else _taken_back(reading, line[stop.end() :], reader)


def _taken_back(reading: Reading, rest: str, reader: Reader) -> Reading:
    """Return what a statement says after the sentences behind it: `B. No wait, C.` says C."""
    back = _TAKES_BACK.search(rest) or _NO.match(rest)
    if back is None:
        return reading
    stop = _STOP.search(rest, back.end())
    new = rest[back.end() : len(rest) if stop is None else stop.start()]
    if _DENIAL.match(new) is not None and not reader.denied(new) & reading.places:
        return reading
    return reader.line(new) or reading._replace(hedged=True)


def _heading(text: str, at: int, reader: Reader) -> Reading | None:
    """Read the line below an announcement, unless it is the first of several options that are listed."""
    lines = [line for line in text[at : at + 2 * MAX_STATEMENT].split("\n") if line.strip(_MARKUP)][:2]
    readings = [reader.line(line) for line in lines]
    if len(readings) == 2 and readings[0] is not None and readings[1] is not None:
        return readings[0] if readings[0].places == readings[1].places else None
    return (readings[0] or reader.mentioned(lines[0])) if readings else None


_MARKUP = " \t\r*_#:：$\\[("


def _last_line(text: str, reader: Reader) -> list[Place]:
    found = final_line(text)
    if found is None or len(found.text) > MAX_STATEMENT:
        return []
    reading = reader.line(found.text)
    if reading is None:
        return []
    before = final_line(text[: found.start])
    above = reader.line(before.text) if before is not None and len(before.text) <= MAX_STATEMENT else None
    # The last of several options that are listed is no answer.
    listed = above is not None and above.places != reading.places and not reading.hedged
    return (
        []
        if listed and not _ANSWERS.search(before.text if before else "")
        else [Place(found.start, "as the last line", reading)]
    )


_ANSWERS = re.compile(r"answer|boxed|####", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_JOINS = frozenset(
    [
        "answer",
        "answers",
        "the",
        "is",
        "final",
        "correct",
        "or",
        "and",
        "also",
        "maybe",
        "either",
        "option",
        "choice",
        "boxed",
        "fbox",
        "text",
        "textbf",
        "mathrm",
        "mathbf",
        "it",
        "could",
        "be",
    ]
)


def _joined(text: str, places: list[Place]) -> Place:
    """Return the last place, together with those right before it: two answers side by side are one statement."""
    last = places[-1]
    assert last.reading is not None
    named, hedged = set(last.reading.places), last.reading.hedged
    after = last
    for place in reversed(places[:-1]):
        assert place.reading is not None
        between = text[place.start : after.start]
        words = {word.casefold() for word in _WORD.findall(between[:200])}
        own = {reader_label.casefold() for reader_label in _WORD.findall(place.reading.text)}
        if len(between) > 120 or not words <= _JOINS | own or len(own) > 3:
            break
        if not place.reading.places <= named:
            together = re.search(r",|\band\b|&", between) is not None and "or" not in words
            hedged = hedged or place.reading.hedged or not together
            named |= place.reading.places
        after = place
    if named == last.reading.places:
        return last
    shown = clean(text[after.start : last.start + 40])
    return Place(last.start, last.rule, Reading(frozenset(named), hedged, shown[:80]))


def _same_sentence(text: str, places: list[Place]) -> Place:
    """Return the last place, hedged when its sentence also calls another option right."""
    last = places[-1]
    assert last.reading is not None
    named = set(last.reading.places)
    for place in reversed(places[:-1]):
        if (
            place.reading is None
            or _STOP.search(text, place.start, last.start)
            or "\n" in text[place.start : last.start]
        ):
            break
        named |= place.reading.places
    if named == last.reading.places:
        return last
    return last._replace(reading=Reading(frozenset(named), True, last.reading.text))


def _chosen(text: str, reader: Reader) -> list[Place]:
    places = []
    for match in list(_CHOOSE.finditer(text))[-MAX_MARKERS:]:
        reading = _statement(text, match.end(), reader)
        if reading is not None and _NOT.search(text[max(0, match.start() - 12) : match.start()]) is None:
            places.append(Place(match.end(), "as the chosen one", reading))
    return places


_UNCERTAIN = re.compile(r"(?:\b(?:or|nor|not|neither|if|whether)|/)\W{0,3}(?:option )?$", re.IGNORECASE)


def _called_correct(text: str, reader: Reader) -> list[Place]:
    places = []
    for match in list(reader.correct.finditer(text))[-MAX_MARKERS:]:
        before = text[max(0, match.start() - 40) : match.start()]
        if before[-1:].isalnum() or _UNCERTAIN.search(before):
            continue
        if match["open"] or match["label"].isupper():
            place = reader.places[match["label"].casefold()]
            rest = text[match.end() : match.end() + MAX_STATEMENT].partition("\n")[0]
            hedged = reader._taken_back(rest, 0, {place})
            reading = Reading(frozenset({place}), hedged, match[0].strip())
            stop = _STOP.search(rest)
            if stop is not None:
                reading = _taken_back(reading, rest[stop.end() :], reader)
            places.append(Place(match.start(), "as the correct one", reading))
    return places


def _first_line(text: str, reader: Reader) -> Place | None:
    lines = [line for line in text.lstrip()[: 2 * MAX_STATEMENT].split("\n") if line.strip()][:2]
    if len(lines) < 2:
        return None
    first, second = map(reader.line, lines)
    return Place(0, "as the first line", first) if first is not None and second is None else None


_SENTENCES = re.compile(r"(?<=[.!?])\s+|\n+|(?<=。)")


def _in_prose(text: str, reader: Reader) -> Place | None:
    end = text[-800:].rstrip()
    sentences = [sentence for sentence in _SENTENCES.split(end) if sentence.strip()]
    if reader.line(end.rpartition("\n")[2]) is not None:
        return None  # the last of several options that are listed
    denied: frozenset[int] = frozenset()
    for sentence in reversed(sentences[-3:]):
        no = _NO.match(sentence)
        said = sentence if no is None else sentence[no.end() :]
        reading = (reader.named(said) or reader.mentioned(said)) if no is None else reader.line(said)
        if reading is not None:
            return None if reading.places & denied else Place(len(text), "in the last sentences", reading)
        denied |= reader.denied(said)
        if denied and _DENIAL.match(said.strip()) is None:
            return None
    return None


# ------------------------------------------------------------------------------------------- the verifier


class ChoiceReference(Reference):
    """The right option: its label, its index, its text, or a list of these where several are right."""

    answer: Any = Field(description="label, index or text of the right option; a list where several are right")
    choices: Any = Field(default=None, description="the options: a list of texts, or a mapping of label to text")
    options: Any = Field(default=None, description="another name for the same")
    _reader: Any = PrivateAttr(default=None)
    _right: frozenset[int] = PrivateAttr(default=frozenset())


class Choice(Verifier[ChoiceReference]):
    r"""Accept when the completion chooses the right option, by its label or by its text.

    The answer is what the last `<answer>` tags hold; else the last of a `\boxed{}`, `####`, "the answer is",
    "Answer:", "the correct choice is", or a last line that is nothing but an answer; else "I choose B" or "B is
    correct", a first line that is nothing but an answer, or the only option that the last sentences name. It may be
    B, (B), b), **B**, \boxed{\text{B}}, "option B", "B) Paris", "Paris", or the number where the options are numbers.

    The options come from the column `choices` or `options` (a list of texts, a mapping of label to text, ARC's
    `{"text": […], "label": […]}`), else from the last list `A) … B) …`, `(A) …`, `A. …` in the prompt, also with digits
    or roman numerals. Without any, labels are the letters A to J and only labels can be read.

    Traps: "A" is a label only where it is no article, "I" only where it is no pronoun. "A or B", two different answers
    side by side, and "B) Paris" where Paris is C are `unreadable`; "A and C" are two answers, and wrong unless both are
    right. A box that names no option is `unreadable`, whatever stands before it. Nothing is read from a refusal or
    a negation ("it cannot be B"). Only the last 20,000 characters count.

    Options:
        gold: what the reference is: "label", "index" or "text"; "auto": a number is an index into a list of choices,
            else a label; a text is a label, else an option's text, else an index, and abstains where two of these fit.
            A number abstains, too, where no options are known.
        index_base: the index of the first option, 0 or 1.
        choices_in: where the options are: the "column", the "prompt", or nowhere ("none"); "auto": as above.

    Example:
        rewardkit try choice --reference B 'The answer is (B) Paris.'
    """

    name: ClassVar[str | None] = "choice"

    gold: Literal["auto", "label", "index", "text"] = "auto"
    index_base: int = Field(default=0, ge=0, le=1)
    choices_in: Literal["auto", "column", "prompt", "none"] = "auto"

    def prepare(self, sample: Sample) -> object:
        prepared = super().prepare(sample)
        if not isinstance(prepared, ChoiceReference):
            return prepared
        try:
            options, right = self._question(prepared, sample)
        except ValueError as problem:
            return Score(None, f"answer: {problem}", reason="bad_reference", name=self.label)
        ready = ChoiceReference(answer=prepared.answer)
        ready._reader = _reader(options)
        ready._right = right
        return ready

    def verify(self, completion: Completion, reference: ChoiceReference, sample: Sample) -> Verdict:
        if not completion.text.strip():
            return Verdict.reject("the completion is empty", reason="no_answer")
        text = answer_region(completion.text, sample)
        if text is None:
            return UNFINISHED
        reader: Reader = reference._reader
        tag = tagged(text, "answer", unclosed=True)
        if tag is None:
            place = stated(text, reader)
            if place is None:
                return Verdict.reject("names no option", reason="no_answer")
        else:
            reading = reader.line(tag.text) or reader.read(tag.text) if len(tag.text) <= MAX_STATEMENT else None
            inner = None if reading is not None else stated(tag.text, reader)
            place = Place(0, "in <answer>", reading if inner is None else inner.reading, tag.text)
        return _verdict(place, reader.options, reference._right)

    # -- the question

    def _question(self, reference: ChoiceReference, sample: Sample) -> tuple[Options, frozenset[int]]:
        """Return the options as the completion saw them, and the right ones among them."""
        column = prompt = None
        given = reference.choices if reference.choices is not None else reference.options
        if given is not None and self.choices_in in ("auto", "column"):
            column = read_options(given)
        if self.choices_in in ("auto", "prompt"):
            prompt = options_in(sample.prompt_text[-5 * MAX_END :])
        if column is None:
            if prompt is not None:
                try:
                    return prompt, self._right(reference.answer, prompt, indexed=False)[0]
                except ValueError:
                    if self.choices_in == "prompt" or self.gold in ("index", "text"):
                        raise
            return self._unlisted(reference.answer)
        right, by_label = self._right(reference.answer, column, indexed=isinstance(given, (list, tuple, str)))
        if prompt is None or len(prompt.labels) != len(column.labels):
            return column, right
        mine, shown = list(map(_plain, column.texts)), list(map(_plain, prompt.texts))
        if mine == shown or not shown:
            return Options(prompt.labels, column.texts), right
        if sorted(mine) != sorted(shown) or len(set(mine)) < len(mine):
            return column, right
        if by_label:
            raise ValueError(
                "the prompt shows the options in another order than the column, so that no label is certain"
            )
        return prompt, frozenset(shown.index(mine[place]) for place in right)

    def _right(self, answer: Any, options: Options, *, indexed: bool) -> tuple[frozenset[int], bool]:
        """Find the right options; also whether they were found by label. Raises ValueError."""
        if isinstance(answer, list):
            if not answer or any(isinstance(item, list) for item in answer):
                raise ValueError("a label, an index or a text is wanted, or a list of these")
            each = [self._right(item, options, indexed=indexed) for item in answer]
            return frozenset().union(*(places for places, _ in each)), any(by_label for _, by_label in each)
        if isinstance(answer, float) and answer.is_integer():
            answer = int(answer)
        if isinstance(answer, int) and not isinstance(answer, bool):
            as_label = self.gold == "label" or (self.gold == "auto" and options.labels[0] == "1" and not indexed)
            if self.gold != "text" and not as_label:
                return frozenset({self._at(answer, options)}), False
            answer = str(answer)
        if isinstance(answer, bool):
            answer = str(answer)
        if not isinstance(answer, str) or not answer.strip():
            raise ValueError(f"a label, an index or a text is wanted, got {str(answer)[:60]!r}")
        return self._from_text(answer, options)

    def _from_text(self, answer: str, options: Options) -> tuple[frozenset[int], bool]:
        reader = _reader(options)
        word = clean(answer).strip(" .,;:()[]")
        if self.gold == "index":
            if re.fullmatch(r"\d{1,3}", word) is None:
                raise ValueError(f"an index is wanted, got {answer[:60]!r}")
            return frozenset({self._at(int(word), options)}), False
        label = reader.places.get(word.casefold())
        if self.gold != "text" and label is not None:
            return frozenset({label}), True
        same = [place for place, own in enumerate(reader.plain) if own and own == _plain(answer)]
        if self.gold != "label" and same:
            if len(same) > 1:
                raise ValueError(f"{answer[:60]!r} is the text of {len(same)} options")
            index = int(word) - self.index_base if re.fullmatch(r"\d{1,2}", word) else -1
            if self.gold == "auto" and 0 <= index < len(options.labels) and index != same[0]:
                raise ValueError(
                    f"{word!r} may be an index or the text of {options.labels[same[0]]}; say so with gold="
                )
            return frozenset(same), False
        if self.gold == "auto" and re.fullmatch(r"\d{1,2}", word) and not options.labels[0].isdecimal():
            return frozenset({self._at(int(word), options)}), False
        reading = reader.read(answer) if self.gold != "text" else reader._as_text(clean(answer))
        if reading is None or not reading.whole or reading.hedged:
            place = stated(answer, reader) if self.gold == "auto" and len(answer) > 12 else None
            reading = place.reading if place is not None and place.rule in _WRITTEN else None
        if reading is None or reading.hedged:
            known = ", ".join(options.labels)
            raise ValueError(f"{answer[:60]!r} is neither a label ({known}) nor the text of an option")
        return reading.places, True

    def _at(self, index: int, options: Options) -> int:
        if not 0 <= index - self.index_base < len(options.labels):
            raise ValueError(f"the index {index} lies outside the {len(options.labels)} options")
        return index - self.index_base

    def _unlisted(self, answer: Any) -> tuple[Options, frozenset[int]]:
        """Without known options the reference says by itself what labels look like."""
        if self.gold == "text":
            raise ValueError("no options are known, so that no text can be found among them")
        if isinstance(answer, int) and not isinstance(answer, bool) and self.gold == "auto":
            raise ValueError(f"no options are known, so that {answer} may be a label or an index; say so with gold=")
        words = [clean(str(item)).strip(" .,;:()[]") for item in (answer if isinstance(answer, list) else [answer])]
        if self.gold == "auto" and any(word.isdecimal() for word in words):
            raise ValueError(
                f"no options are known, so that {answer!r:.60} may be a label or an index; say so with gold="
            )
        kinds = [LETTERS]
        if self.gold != "index" and all(word in _DIGITS for word in words):
            kinds = [_DIGITS]
        elif all(word.upper() in _ROMAN for word in words) and any(word.upper() not in _USUAL for word in words):
            kinds = [_ROMAN]
        right, _ = self._right(answer, Options(kinds[0]), indexed=False)
        few = kinds[0] is LETTERS and max(right) < len(_USUAL)
        return Options(_USUAL if few else kinds[0]), right


_WRITTEN = ("in \\boxed", "after ####", 'after "the answer is"', 'after "answer:"', "as the last line")


@lru_cache(maxsize=256)
def _reader(options: Options) -> Reader:
    return Reader(options)


def _verdict(place: Place, options: Options, right: frozenset[int]) -> Verdict:
    reading, rule = place.reading, place.rule
    if reading is None:
        shown = " ".join(place.text[:200].split())
        if not shown:
            return Verdict.reject(f"no option {rule}", reason="no_answer")
        return Verdict.reject(f"{_cut(shown)!r} {rule} names no option", extracted=shown, reason="unreadable")
    shown = options.show(reading.places)
    if reading.hedged:
        return Verdict.reject(
            f"{_cut(reading.text)!r} {rule} leaves open which one", extracted=shown, reason="unreadable"
        )
    if reading.places == right:
        return Verdict.accept(f"{shown} {rule}", extracted=shown)
    return Verdict.reject(f"{shown} {rule}, not {options.show(right)}", extracted=shown)


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
