from rewardkit.records import BadRow, FieldMap, Row


class DayLog:
    """Reader of lines `question => day => answer`."""

    map = FieldMap({"prompt": "question", "reference": "day", "completion": "answer"})  # nothing is guessed

    def detect(self, name: str, head: bytes) -> int:
        return 90 if name.endswith(".daylog") else 0  # 0 to 100; the surest reader gets the file

    def rows(self, source):
        for number, line in enumerate(source.lines(), 1):
            cells = line.decode("utf-8", "replace").strip().split(" => ")
            if len(cells) == 3:
                yield Row(number, dict(zip(("question", "day", "answer"), cells, strict=True)))
            else:
                yield BadRow(number, f"{len(cells)} cells, not 3")


READER = DayLog()
