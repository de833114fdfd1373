"""Where a completion states its choice, and which options that names."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from rewardkit.extract import boxed, final_line, hash_marker
from rewardkit.number import read_number, same_number
from rewardkit.verifiers.choice_options import MAX_END, Options

MAX_STATEMENT = 600  # characters of a statement that are looked at
MAX_MARKERS = 50  # places that may state an answer, looked at from the last one on


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
def plain_text(text: str) -> str:
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
        self.plain = tuple(map(plain_text, options.texts))
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
        plain = plain_text(text)
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
        rest = plain_text(text[end:].lstrip(" .:)-–—"))
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
            if not own or not plain_text(text[end:]).startswith(own):
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
        plain = plain_text(text)
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
