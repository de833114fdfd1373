"""Write requests for short e-mails, with the house's own reply: train.jsonl (48) and held_out.jsonl (24).

    python examples/emails/make_data.py

Made up, people included. A row has what the e-mail rubric asks for: `recipient`, `keywords`, and the ideal reply as
`reference`. The held-out rows are other pairs of person and matter.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

PEOPLE = (
    "Anna Smith", "Ravi Patel", "Mei Chen", "Tom Fisher", "Lucía Gómez", "Jonas Weber",
    "Aisha Khan", "Paul Martin", "Ewa Nowak", "Kenji Sato", "Sara Lind", "David Okafor",
)  # fmt: skip
MATTERS = (
    ("the refund for order 1182", ("refund", "1182"), "the refund for order 1182 is on its way"),
    ("the delivery of order 2043", ("delivery", "2043"), "the delivery of order 2043 leaves on Monday"),
    ("the invoice for March", ("invoice", "March"), "the invoice for March is attached"),
    ("the repair of the printer", ("repair", "printer"), "the repair of the printer is done"),
    ("the meeting on Friday", ("meeting", "Friday"), "the meeting on Friday begins at ten"),
    ("the new password", ("password",), "the new password was sent by post"),
)
SENDER = "Sam Reed\nCustomer care\ncare@example.com"
HELD_OUT = 24


def row(person: str, matter: str, keywords: tuple[str, ...], news: str) -> dict[str, object]:
    """Return one request and its ideal reply."""
    prompt = (
        f"Write a short e-mail to {person} about {matter}. Say that {news}. Greet {person} by name, and end with a"
        " sign-off and the signature of Sam Reed, Customer care, care@example.com. Write the e-mail only."
    )
    reply = f"Dear {person},\n\n{news}.\n\nBest regards,\n{SENDER}"
    return {"prompt": prompt, "recipient": person, "keywords": list(keywords), "reference": reply}


def write(path: Path, rows: list[dict[str, object]]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in rows), encoding="utf-8")


if __name__ == "__main__":
    here, rows = Path(__file__).parent, [row(person, *matter) for person in PEOPLE for matter in MATTERS]
    random.Random(7).shuffle(rows)
    write(here / "held_out.jsonl", rows[:HELD_OUT])
    write(here / "train.jsonl", rows[HELD_OUT:])
