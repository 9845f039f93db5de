"""Request documents: bytes to elements, with every way to be malformed answered by one S3 error.

Document type declarations, and with them entities, are refused. Namespaces are not compared: `<Key>`, `<s3:Key>` and
`<Key xmlns="...">` are the same, as clients differ. White space in an element that holds no other is data; beside
elements it is skipped, and any other text there is refused. Attributes, comments and processing instructions are
skipped.

expat is driven directly: the limits must hold while a document is read, not after it was built, and keys must keep
their white space.
"""

from collections.abc import Iterator
from xml.parsers import expat

from s3verbs.gateway.errors import S3Error

MAX_DEPTH = 32
"""Levels of elements; S3's deepest request document has nine."""

MAX_ELEMENTS = 100_000
"""Elements of a document; 10,000 parts with all that a part may hold fit."""

_ENCODINGS = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})


class Element:
    """An element: text, or other elements in order."""

    __slots__ = ("_pieces", "children", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.children: list[Element] = []
        self._pieces: list[str] = []

    @property
    def content(self) -> str:
        """The text exactly as sent. Raises MalformedXML when the element holds elements."""
        if self.children:
            raise S3Error("MalformedXML")
        return "".join(self._pieces)

    def all(self, name: str) -> Iterator["Element"]:
        """The child elements of a name, in order."""
        return (child for child in self.children if child.name == name)

    def text(self, name: str) -> str | None:
        """The text of a child exactly as sent, "" when it is empty, None when there is no such child.

        Raises MalformedXML when there is more than one, or when it holds elements.
        """
        found: str | None = None
        for child in self.children:
            if child.name == name:
                if found is not None:
                    raise S3Error("MalformedXML")
                found = child.content
        return found


class _Builder:
    """expat's handlers. `open` holds the elements that are not yet closed, below a nameless one for the document."""

    __slots__ = ("count", "document", "open")

    def __init__(self) -> None:
        self.document = Element("")
        self.open = [self.document]
        self.count = 0

    def start(self, name: str, _attributes: object) -> None:
        self.count += 1
        if self.count > MAX_ELEMENTS or len(self.open) > MAX_DEPTH:
            raise ValueError("the document has too many elements")
        element = Element(name.rpartition(":")[2])
        self.open[-1].children.append(element)
        self.open.append(element)

    def end(self, _name: str) -> None:
        element = self.open.pop()
        if element.children and not all(piece.isspace() for piece in element._pieces):
            raise ValueError("text beside elements")

    def text(self, data: str) -> None:
        self.open[-1]._pieces.append(data)

    def refuse(self, *_declaration: object) -> None:
        raise ValueError("document types are not accepted")

    def declaration(self, _version: str, encoding: str | None, _standalone: int) -> None:
        if encoding is not None and encoding.lower() not in _ENCODINGS:
            raise ValueError("documents must be in UTF-8")


def parse(body: bytes, root: str) -> Element:
    """The root element of a document, which must be named `root`. The caller limits the size of `body`.

    Raises S3Error MalformedXML, and nothing else, for whatever is no such document in UTF-8.
    """
    builder = _Builder()
    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.ordered_attributes = True
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.text
    parser.StartDoctypeDeclHandler = builder.refuse
    parser.EntityDeclHandler = builder.refuse
    parser.XmlDeclHandler = builder.declaration
    try:
        # expat recognises UTF-16 by its byte order mark or its zero bytes, whatever encoding it was told.
        if b"\0" in body:
            raise S3Error("MalformedXML")
        parser.Parse(body.decode("utf-8"), True)
    except (expat.ExpatError, ValueError) as error:
        raise S3Error("MalformedXML") from error
    (element,) = builder.document.children
    if element.name != root:
        raise S3Error("MalformedXML")
    return element
