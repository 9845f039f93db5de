"""Known deviations of a server: a JSON file, {"about": text, "deviations": {pattern of case names: why}}.

Patterns are fnmatch's, on the case's name as the report prints it. A profile is a name (a file of this package's
`profiles` folder) or a path.
"""

import json
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

FOLDER = Path(__file__).with_name("profiles")


@dataclass(frozen=True)
class Profile:
    about: str = ""
    deviations: dict[str, str] = field(default_factory=dict)

    def why(self, title: str) -> str:
        """Why a case is expected to fail, "" when it is not."""
        return next((why for pattern, why in self.deviations.items() if fnmatchcase(title, pattern)), "")


def load(name: str) -> Profile:
    """Raises ValueError: no such profile, not of the form."""
    path = Path(name)
    if not path.is_file():
        path = FOLDER / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in FOLDER.glob("*.json"))) or "none"
        raise ValueError(f"no profile {name!r}: give a file, or one of: {known}")
    try:
        document = json.loads(path.read_text())
        deviations = document["deviations"]
        if not all(isinstance(text, str) for pair in deviations.items() for text in pair):
            raise TypeError("deviations must map texts to texts")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a profile: {error}") from error
    return Profile(document.get("about", ""), deviations)
