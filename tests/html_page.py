"""Parses an HTML page."""

import html.parser


class Page(html.parser.HTMLParser):
    """The tags, the text and the references. `open`: elements not closed yet; they must close in order."""

    VOID = ("meta", "col", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.references, self.text = [], [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        names = ("href", "src", "xlink:href", "action", "data")
        self.references += [value for name, value in attributes if name in names]
        self.references += [value for name, value in attributes if name == "style" and "url" in (value or "")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
